// Fetches rows of the log by their place, in one transaction.
//
// A backlog is larger than shared memory. Read as any table it would be dirtied row by row with
// hints about its transactions, push out what others need, and be written back for nothing. So
// pages are read through a small ring of buffers, as large sequential scans do, and left as they
// are: whether a transaction has committed is asked once per transaction, not noted in each row.
#pragma once

#include "bgworker/relay/window_spool.hpp"
#include "extension/log/log.hpp"

namespace outbox {

struct RowFetcher {
    BufferAccessStrategy ring;  // as long as the process
    // The rest is of one transaction.
    MemoryContext context;
    Relation tables[segment_count];
    TupleTableSlot* slots[segment_count];
    Buffer page;  // the last one, pinned
    Relation page_table;
    TransactionId last_xmin;
    bool last_xmin_committed;
};

void create_row_fetcher(RowFetcher& fetcher);

void begin_fetching(RowFetcher& fetcher);
void end_fetching(RowFetcher& fetcher);

// Nothing: its subtransaction was rolled back.
enum class Fetched { row, nothing, log_is_gone };

// The row of a transaction that is known to have finished. `slot` is valid until the next call.
Fetched fetch_row(RowFetcher& fetcher, const WindowEntry& entry, TupleTableSlot*& slot);

}  // namespace outbox
