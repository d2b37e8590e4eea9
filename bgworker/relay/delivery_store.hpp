// Reads and writes events in trouble in outbox.delivery. sql/pg_outbox/delivery.sql defines the
// rows; its functions do the work.
//
// All functions need a transaction of begin_sql_work(). Those that change rows, but for
// record_events(), also need the lock of the cursor.
#pragma once

#include <vector>

#include "bgworker/relay/cursor_store.hpp"
#include "core/relay/relay.hpp"
#include "extension/destinations/expressions.hpp"

namespace outbox {

// To be called before the log is read from the cursor. Frees retries that an earlier relay had in
// flight. `recorded` gets the positions of events in outbox.delivery that will be read from the log
// once more.
void begin_deliveries(const char* destination, const Cursor& cursor,
                      std::vector<std::int64_t>& recorded);

// Tells the pipeline which keys the table holds.
void load_held_keys(const char* destination, Pipeline& pipeline);

// Locks the cursor, writes the events that the pipeline wants recorded, and frees keys that no event
// holds any more. `due` gets when the next retry is due; `never` if there is none. Tell the relay that
// they are recorded only after the transaction has committed.
CallOutcome record_events(const char* destination, Relay& relay, const Clock& clock, Micros& due);

// Gives due retries to the pipeline, with what `expressions` make of them (nullptr: there are none).
// Removes those that the filter does not select. Returns how many were due.
std::size_t load_retries(const char* destination, Expressions* expressions, Pipeline& pipeline);

// Makes at most this many events due that waited for a failed destination or lane. Returns how
// many.
std::size_t hurry_retries(const char* destination, int at_most);

// Returns when the next retry is due; `never` if there is none.
Micros next_retry(const char* destination, const Clock& clock);

}  // namespace outbox
