// Enqueues once per source event: a consumer that publishes events may handle a message again.
#pragma once

#include "extension/base/pg.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// `values` is a row of the log with a source event id. Returns the id of the event that was
// enqueued before for the same (source event, aggregate type, aggregate id, event type). Returns
// nullptr if this is the first, and remembers it in this transaction. Waits for another transaction
// that does the same for this source event, because the result depends on its outcome.
const pg_uuid_t* claim_source_event(const Datum* values);

}  // namespace outbox
