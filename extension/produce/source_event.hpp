// Enqueueing once per source event: a consumer that publishes onward may handle a message again.
#pragma once

#include "extension/base/pg.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// `values` is a row of the log with a source event id. Returns the id of the event that was
// enqueued before for the same (source event, aggregate type, aggregate id, event type), or
// nullptr: this is the first, and it is remembered in this transaction. Waits for a transaction
// that does the same with the same source event, because only its outcome tells.
const pg_uuid_t* claim_source_event(const Datum* values);

}  // namespace outbox
