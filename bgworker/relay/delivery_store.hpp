// Events in trouble, in outbox.delivery: what the relay writes there and gets from there.
// sql/pg_outbox/delivery.sql says what the rows mean; its functions do the work.
//
// All in a transaction of begin_sql_work(). What changes rows needs the lock of the cursor.
#pragma once

#include <vector>

#include "bgworker/relay/cursor_store.hpp"
#include "core/pipeline/pipeline.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// Before the log is read from the cursor: retries that an earlier relay had under way are free
// again, `recorded` gets the positions of events that stand in outbox.delivery and will be met in
// the log once more.
void begin_deliveries(const char* destination, const Cursor& cursor,
                      std::vector<std::int64_t>& recorded);

// Tells the pipeline which keys are held, as the table has it.
void load_held_keys(const char* destination, Pipeline& pipeline);

// Writes what the pipeline wants recorded, and frees the keys that nothing holds any more. The
// pipeline may be told that it is recorded once the transaction has committed.
void record_events(const char* destination, Pipeline& pipeline);

// Hands retries that are due to the pipeline. Returns how many.
std::size_t load_retries(const char* destination, Pipeline& pipeline);

// Makes at most so many events due that waited for what was down. Returns how many.
std::size_t hurry_retries(const char* destination, int at_most);

// Keeps receipts in outbox.receipt.
void save_receipts(const char* destination, const std::vector<Receipt>& receipts);

// When the next retry is due; `never`: there is none.
Micros next_retry(const char* destination, const Clock& clock);

}  // namespace outbox
