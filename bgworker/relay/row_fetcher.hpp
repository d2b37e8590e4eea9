// Fetches rows of the log by their TIDs, in one transaction.
//
// A backlog may be larger than shared memory. A normal scan would dirty its pages with hint bits,
// push out pages that others need, and write them back without use. So pages are read through a
// small ring of buffers, as large sequential scans do, and left unchanged: the commit status is
// looked up once per transaction and not stored in each row.
#pragma once

#include "bgworker/relay/window_spool.hpp"
#include "extension/log/log.hpp"

namespace outbox {

struct RowFetcher {
    BufferAccessStrategy ring;  // lives as long as the process
    // The rest is valid in one transaction.
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

// `nothing` if the row's subtransaction was rolled back.
enum class Fetched { row, nothing, log_is_gone };

// Fetches a row of a transaction that is known to have finished. `slot` is valid until the next
// call.
Fetched fetch_row(RowFetcher& fetcher, const WindowEntry& entry, TupleTableSlot*& slot);

}  // namespace outbox
