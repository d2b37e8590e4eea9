// Asks the database for the sink of a destination with endpoints (core/endpoints.hpp).
// outbox_internal.ask_endpoints() does the work.
#pragma once

#include <string_view>

#include "core/endpoint_answer.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// Adds the answer to `builder`. Needs a transaction of begin_sql_work() and the lock of the cursor.
// The answer holds only once the transaction has committed.
void ask_endpoints(const char* destination, std::string_view question,
                   EndpointAnswerBuilder& builder);

}  // namespace outbox
