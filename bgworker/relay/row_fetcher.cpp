#include "bgworker/relay/row_fetcher.hpp"

namespace outbox {

void create_row_fetcher(RowFetcher& fetcher) {
    MemoryContext outer = MemoryContextSwitchTo(TopMemoryContext);
    fetcher.ring = GetAccessStrategy(BAS_BULKREAD);
    MemoryContextSwitchTo(outer);
}

void begin_fetching(RowFetcher& fetcher) {
    fetcher.context = CurrentMemoryContext;
    memset(fetcher.tables, 0, sizeof fetcher.tables);
    fetcher.page = InvalidBuffer;
    fetcher.page_table = nullptr;
    fetcher.last_xmin = InvalidTransactionId;
}

void end_fetching(RowFetcher& fetcher) {
    for (int i = 0; i < segment_count; i++)
        if (fetcher.tables[i] != nullptr) {
            ExecDropSingleTupleTableSlot(fetcher.slots[i]);
            table_close(fetcher.tables[i], AccessShareLock);
        }
    if (BufferIsValid(fetcher.page))
        ReleaseBuffer(fetcher.page);
}

// Returns false if the log is gone.
static bool open_segment(RowFetcher& fetcher, int number) {
    if (fetcher.tables[number] != nullptr)
        return true;
    MemoryContext outer = MemoryContextSwitchTo(fetcher.context);
    fetcher.tables[number] = try_open_segment(number);
    if (fetcher.tables[number] != nullptr)
        fetcher.slots[number] = table_slot_create(fetcher.tables[number], nullptr);
    MemoryContextSwitchTo(outer);
    return fetcher.tables[number] != nullptr;
}

// Keeps the last page pinned: rows of one transaction follow each other in order of TID.
static void pin_page(RowFetcher& fetcher, Relation table, BlockNumber block) {
    if (fetcher.page_table == table && BufferGetBlockNumber(fetcher.page) == block)
        return;
    if (BufferIsValid(fetcher.page))
        ReleaseBuffer(fetcher.page);
    fetcher.page = InvalidBuffer;
    fetcher.page = ReadBufferExtended(table, MAIN_FORKNUM, block, RBM_NORMAL, fetcher.ring);
    fetcher.page_table = table;
}

static bool has_committed(RowFetcher& fetcher, HeapTupleHeader row) {
    if (HeapTupleHeaderXminCommitted(row))
        return true;
    if (HeapTupleHeaderXminInvalid(row))
        return false;
    const TransactionId xmin = HeapTupleHeaderGetRawXmin(row);
    if (xmin != fetcher.last_xmin) {
        fetcher.last_xmin_committed = TransactionIdDidCommit(xmin);
        fetcher.last_xmin = xmin;
    }
    return fetcher.last_xmin_committed;
}

static bool fetch_from_heap(RowFetcher& fetcher, Relation table, ItemPointerData place,
                            TupleTableSlot* slot) {
    ExecClearTuple(slot);
    pin_page(fetcher, table, ItemPointerGetBlockNumber(&place));
    LockBuffer(fetcher.page, BUFFER_LOCK_SHARE);
    Page page = BufferGetPage(fetcher.page);
    const OffsetNumber offset = ItemPointerGetOffsetNumber(&place);
    ItemId item = offset <= PageGetMaxOffsetNumber(page) ? PageGetItemId(page, offset) : nullptr;
    const bool there = item != nullptr && ItemIdIsNormal(item);
    // A slot does not copy what is stored in it, so the row's header must live in the slot.
    HeapTupleData& row = reinterpret_cast<BufferHeapTupleTableSlot*>(slot)->base.tupdata;
    bool visible = false;
    if (there) {
        row.t_data = reinterpret_cast<HeapTupleHeader>(PageGetItem(page, item));
        row.t_len = ItemIdGetLength(item);
        row.t_self = place;
        row.t_tableOid = RelationGetRelid(table);
        // Rows of the log are not deleted. If somebody deletes them anyway, the usual visibility
        // rules apply.
        visible = row.t_data->t_infomask & HEAP_XMAX_INVALID
                      ? has_committed(fetcher, row.t_data)
                      : HeapTupleSatisfiesVisibility(&row, GetActiveSnapshot(), fetcher.page);
    }
    // If somebody has updated the row, the visible version may come later in its update chain.
    if (!visible && item != nullptr &&
        (ItemIdIsRedirected(item) || (there && HeapTupleHeaderIsHotUpdated(row.t_data))))
        visible = heap_hot_search_buffer(&place, table, fetcher.page, GetActiveSnapshot(), &row,
                                         nullptr, true);
    // The pin is enough from here on: rows do not change, and a pinned page is not compacted.
    LockBuffer(fetcher.page, BUFFER_LOCK_UNLOCK);
    if (visible)
        ExecStoreBufferHeapTuple(&row, slot, fetcher.page);
    return visible;
}

Fetched fetch_row(RowFetcher& fetcher, const WindowEntry& entry, TupleTableSlot*& slot) {
    if (!open_segment(fetcher, entry.segment))
        return Fetched::log_is_gone;
    Relation table = fetcher.tables[entry.segment];
    slot = fetcher.slots[entry.segment];
    ItemPointerData place = entry.place;
    const bool found =
        table->rd_tableam == GetHeapamTableAmRoutine()
            ? fetch_from_heap(fetcher, table, place, slot)
            : table_tuple_fetch_row_version(table, &place, GetActiveSnapshot(), slot);
    return found ? Fetched::row : Fetched::nothing;
}

}  // namespace outbox
