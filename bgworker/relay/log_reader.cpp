#include "bgworker/relay/log_reader.hpp"

#include <algorithm>

#include "bgworker/relay/event_copy.hpp"
#include "bgworker/relay/row_fetcher.hpp"
#include "bgworker/relay/window_spool.hpp"
#include "extension/base/boundary.hpp"
#include "extension/base/shared_state.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// For up to this many transactions the WAL position of each commit is looked up; for more, all WAL
// is flushed.
static constexpr int max_looked_up_commits = 64;

// Rows read in one transaction, even if no topic matches.
static constexpr int max_rows_at_once = 10'000;

struct LogReader {
    WindowSpool* spool;
    RowFetcher fetcher;
    bool scanned_before;
    // State of the scan under way.
    uint64 last_xid;
    bool last_xid_finished;
    int commits;
    XLogRecPtr commits_end;
    std::uint32_t segments;  // that have rows of the window, a bit each
    int64 last_position;
};

LogReader* create_log_reader() {
    auto* reader =
        static_cast<LogReader*>(MemoryContextAllocZero(TopMemoryContext, sizeof(LogReader)));
    reader->spool = create_spool();
    create_row_fetcher(reader->fetcher);
    return reader;
}

void restart_reading(LogReader* reader) {
    reader->scanned_before = false;
    reset_spool(reader->spool);
}

// ---------------------------------------------------------------------------------------------
// Snapshots
// ---------------------------------------------------------------------------------------------

// Extends an xid of the last two billion to 64 bits.
static uint64 widen(TransactionId xid, FullTransactionId next) {
    uint64 epoch = EpochFromFullTransactionId(next);
    if (xid > XidFromFullTransactionId(next))
        epoch--;
    return (epoch << 32) | xid;
}

void copy_active_snapshot(Snapshot& to) {
    const SnapshotData* from = GetActiveSnapshot();
    const FullTransactionId next = ReadNextFullTransactionId();
    run_core([&] {
        to.xmin = widen(from->xmin, next);
        to.xmax = widen(from->xmax, next);
        to.xip.resize(from->xcnt);
        for (uint32 i = 0; i < from->xcnt; i++)
            to.xip[i] = widen(from->xip[i], next);
        to.order_xip();
    });
}

// ---------------------------------------------------------------------------------------------
// Scanning a window
// ---------------------------------------------------------------------------------------------

// A commit with synchronous_commit = off is visible before it is on disk. The commit log knows a
// WAL position up to which the commits of a group of transactions are complete. For synchronous
// commits it lies no further than they have flushed themselves.
static void note_commit(LogReader* reader, uint64 xid) {
    if (reader->scanned_before && ++reader->commits <= max_looked_up_commits) {
        const XLogRecPtr end = TransactionIdGetCommitLSN(static_cast<TransactionId>(xid));
        reader->commits_end = Max(reader->commits_end, end);
    }
}

// At the start of a page GetXLogInsertRecPtr() returns the position behind the page's header. No
// record ends there, so XLogFlush() would fail.
static XLogRecPtr end_of_wal() {
    const XLogRecPtr next = GetXLogInsertRecPtr();
    const bool starts_segment = XLogSegmentOffset(next, wal_segment_size) < XLOG_BLCKSZ;
    const Size header = starts_segment ? SizeOfXLogLongPHD : SizeOfXLogShortPHD;
    return next % XLOG_BLCKSZ == header ? next - header : next;
}

static void flush_commits(LogReader* reader) {
    // In the first window, or the first after a seek, transactions may be so old that the commit
    // log has forgotten their positions.
    const bool look_ups_suffice =
        reader->scanned_before && reader->commits <= max_looked_up_commits;
    XLogFlush(look_ups_suffice ? reader->commits_end : end_of_wal());
    reader->scanned_before = true;
}

static bool is_settled(const Settled& settled, uint64 xid, int64 position) {
    return settled.any && position <= settled.position && settled.in.finished(xid);
}

struct OpenSegment {
    uint16 number;
    Relation table;
    Relation index;
};

// Adds those entries with first <= xid < end that `to` sees.
static void scan_range(LogReader* reader, const OpenSegment& segment, uint64 first, uint64 end,
                       const Settled& settled, const Snapshot& to) {
    ScanKeyData keys[2];
    ScanKeyInit(&keys[0], 1, BTGreaterEqualStrategyNumber, F_XID8GE, UInt64GetDatum(first));
    ScanKeyInit(&keys[1], 1, BTLessStrategyNumber, F_XID8LT, UInt64GetDatum(end));

    IndexScanDesc scan =
        compat::begin_index_scan(segment.table, segment.index, GetActiveSnapshot(), lengthof(keys));
    scan->xs_want_itup = true;
    index_rescan(scan, keys, lengthof(keys), nullptr, 0);
    while (ItemPointer place = index_getnext_tid(scan, ForwardScanDirection)) {
        CHECK_FOR_INTERRUPTS();
        bool is_null;
        const uint64 xid =
            DatumGetUInt64(index_getattr(scan->xs_itup, 1, scan->xs_itupdesc, &is_null));
        const int64 position =
            DatumGetInt64(index_getattr(scan->xs_itup, 2, scan->xs_itupdesc, &is_null));
        if (xid != reader->last_xid) {
            reader->last_xid = xid;
            reader->last_xid_finished = to.finished(xid);
            if (reader->last_xid_finished)
                note_commit(reader, xid);
        }
        if (reader->last_xid_finished && !is_settled(settled, xid, position)) {
            add_to_spool(reader->spool, {position, *place, segment.number});
            reader->segments |= 1U << segment.number;
        }
    }
    index_endscan(scan);
}

static Relation open_order_index(Relation segment) {
    ListCell* cell;
    foreach (cell, RelationGetIndexList(segment)) {
        Relation index = index_open(lfirst_oid(cell), AccessShareLock);
        if (is_order_index(index))
            return index;
        index_close(index, AccessShareLock);
    }
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("the log has lost its index"),
                    errhint("CREATE INDEX ON %s.%s (xid, position);",
                            get_namespace_name(RelationGetNamespace(segment)),
                            RelationGetRelationName(segment))));
    pg_unreachable();
}

// Keeps the keeper from emptying segments of which this reader holds TIDs. A session has no slot,
// but locks the segments.
static void note_reading(uint32 segments) {
    if (my_slot >= 0)
        shared->slots[my_slot].reading = segments;
}

// Adds the entries of one segment. Returns false if the log is gone.
static bool scan_segment(LogReader* reader, int number, const Snapshot& from,
                         const Settled& settled, const Snapshot& to) {
    Relation table = try_open_segment(number);
    if (table == nullptr)
        return false;
    if (RelationGetNumberOfBlocks(table) > 0) {
        const OpenSegment segment = {static_cast<uint16>(number), table, open_order_index(table)};
        reader->last_xid = 0;
        for (uint64 xid : from.xip)  // in progress in `from`
            if (to.finished(xid))
                scan_range(reader, segment, xid, xid + 1, settled, to);
        if (from.xmax < to.xmax)
            scan_range(reader, segment, from.xmax, to.xmax, settled, to);
        index_close(segment.index, AccessShareLock);
    }
    // Before the lock is released: the keeper reads these bits after it has locked the segment.
    note_reading(reader->segments);
    table_close(table, AccessShareLock);
    return true;
}

void forget_window() {
    note_reading(0);
}

int64 collect_window(LogReader* reader, const Snapshot& from, const Settled& settled,
                     const Snapshot& to) {
    reset_spool(reader->spool);
    reader->commits = 0;
    reader->commits_end = InvalidXLogRecPtr;
    reader->segments = 0;
    for (int i = 0; i < segment_count; i++)
        if (!scan_segment(reader, i, from, settled, to))
            return -1;
    return static_cast<int64>(sort_spool(reader->spool));
}

int64 scan_window(LogReader* reader, const Snapshot& from, const Settled& settled, Snapshot& to) {
    copy_active_snapshot(to);
    const int64 count = collect_window(reader, from, settled, to);
    if (count > 0)
        flush_commits(reader);
    return count;
}

// ---------------------------------------------------------------------------------------------
// Reading the events of a window
// ---------------------------------------------------------------------------------------------

static bool is_for(std::int32_t destination, TupleTableSlot* slot) {
    bool to_all;
    const Datum only_to = slot_getattr(slot, LogOnlyTo + 1, &to_all);
    return to_all || DatumGetInt32(only_to) == destination;
}

static bool topic_matches(const TopicFilter& topics, TupleTableSlot* slot) {
    if (topics.matches_everything())
        return true;
    bool is_null;
    const Datum value = slot_getattr(slot, LogTopic + 1, &is_null);
    if (is_null)  // copy_event() raises an error
        return true;
    const Bytes topic = utf8_of(value);
    return topics.matches({topic.data, topic.size});
}

int64 last_position_read(const LogReader* reader) {
    return reader->last_position;
}

ReadResult read_events(LogReader* reader, std::int32_t destination, const TopicFilter& topics,
                       const std::vector<std::int64_t>& recorded, Expressions* expressions,
                       EventBlock& block) {
    RowFetcher& fetcher = reader->fetcher;
    begin_fetching(fetcher);
    MemoryContext row_context =
        AllocSetContextCreate(CurrentMemoryContext, "outbox row", ALLOCSET_DEFAULT_SIZES);
    MemoryContext outer = MemoryContextSwitchTo(row_context);

    const WindowEntry* entry;
    int rows = 0;
    bool gone = false;
    for (; (entry = peek_spool(reader->spool)) != nullptr; drop_from_spool(reader->spool)) {
        if (rows == max_rows_at_once ||
            (expressions != nullptr && rows > 0 && expressions->took_long()))
            break;
        rows++;
        reader->last_position = entry->position;
        if (std::binary_search(recorded.begin(), recorded.end(), entry->position))
            continue;
        TupleTableSlot* row;
        const Fetched fetched = fetch_row(fetcher, *entry, row);
        gone = fetched == Fetched::log_is_gone;
        if (gone)
            break;
        if (fetched == Fetched::nothing)
            continue;
        bool is_null;
        if (DatumGetInt64(slot_getattr(row, LogPosition + 1, &is_null)) != entry->position)
            ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                            errmsg("the log was rewritten while it was read"),
                            errdetail("The relay starts over from its saved cursor.")));
        if (!topic_matches(topics, row) || !is_for(destination, row))
            continue;
        EventChange change;
        if (expressions != nullptr && !expressions->evaluate(row, change))
            continue;
        if (!copy_event(row, block, expressions != nullptr ? &change : nullptr))
            break;
        MemoryContextReset(row_context);
    }
    MemoryContextSwitchTo(outer);
    MemoryContextDelete(row_context);
    end_fetching(fetcher);
    if (gone)
        return ReadResult::log_is_gone;
    return entry == nullptr ? ReadResult::end_of_window : ReadResult::more;
}

}  // namespace outbox
