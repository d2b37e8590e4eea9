#include "bgworker/relay/log_reader.hpp"

#include <algorithm>
#include <utility>

#include "bgworker/relay/event_copy.hpp"
#include "bgworker/relay/row_fetcher.hpp"
#include "bgworker/relay/window_spool.hpp"
#include "extension/base/boundary.hpp"
#include "extension/base/shared_reading.hpp"
#include "extension/base/shared_state.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// For up to this many transactions the WAL position of each commit is looked up; for more, all WAL
// is flushed.
static constexpr int max_looked_up_commits = 64;

// Entries of the index that one scan passes over before it looks for the next one of the window.
static constexpr int max_entries_passed = 64;

// Rows read in one transaction, even if no topic matches.
static constexpr int max_rows_at_once = 10'000;

// State of the window that this relay shares with others.
struct Sharing {
    SharedWindow window;
    uint64 completed = 0;             // transactions, before the last look
    bool began = false;               // the relay has read a window since it started
    bool gives = false;               // blocks to others
    int64 waited_for = PG_INT64_MIN;  // events after this position, which another relay reads
    bool scanned = true;              // false: the window was taken from another relay
};

// The window that is read, to scan it again.
struct WindowBounds {
    Snapshot from, to;
    Settled settled;
};

struct LogReader {
    Sharing* sharing;
    WindowBounds* window;
    WindowSpool* spool;
    RowFetcher fetcher;
    bool scanned_before;
    // State of the scan under way.
    uint64 last_xid;
    bool last_xid_finished;
    int commits;
    XLogRecPtr commits_end;
    std::uint32_t segments;    // that have rows of the window, a bit each
    Oid files[segment_count];  // in which these rows have their places
    int64 last_position;
};

LogReader* create_log_reader() {
    auto* reader =
        static_cast<LogReader*>(MemoryContextAllocZero(TopMemoryContext, sizeof(LogReader)));
    reader->spool = create_spool();
    create_row_fetcher(reader->fetcher);
    run_core([reader] {
        reader->sharing = new Sharing;
        reader->window = new WindowBounds;
    });
    return reader;
}

void restart_reading(LogReader* reader) {
    reader->scanned_before = false;
    reader->sharing->began = false;
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

// Returns the first xid of the window that is not below `xid`: one that was in progress in `from` and
// is not any more, or any from the end of `from` on. If the window has none, it is not below its end.
static uint64 next_in_window(uint64 xid, const Snapshot& from, const Snapshot& to) {
    auto late = std::lower_bound(from.xip.begin(), from.xip.end(), xid);
    while (late != from.xip.end() && !to.finished(*late))
        late++;
    return late != from.xip.end() ? *late : Max(xid, from.xmax);
}

static void seek(IndexScanDesc scan, uint64 first, uint64 end) {
    ScanKeyData keys[2];
    ScanKeyInit(&keys[0], 1, BTGreaterEqualStrategyNumber, F_XID8GE, UInt64GetDatum(first));
    ScanKeyInit(&keys[1], 1, BTLessStrategyNumber, F_XID8LT, UInt64GetDatum(end));
    index_rescan(scan, keys, lengthof(keys), nullptr, 0);
}

// Adds the entry, unless its transaction is still in progress or it was settled.
static void take_entry(LogReader* reader, const OpenSegment& segment, uint64 xid, int64 position,
                       ItemPointerData place, const Settled& settled, const Snapshot& to) {
    if (xid != reader->last_xid) {
        reader->last_xid = xid;
        reader->last_xid_finished = to.finished(xid);
        if (reader->last_xid_finished)
            note_commit(reader, xid);
    }
    if (!reader->last_xid_finished || is_settled(settled, xid, position))
        return;
    add_to_spool(reader->spool, {position, place, segment.number});
    reader->segments |= 1U << segment.number;
}

// Adds the entries of the window. Its xids lie close together as a rule, so one scan goes over all
// of them; another scan starts where many entries lie between, as behind a transaction that was open
// for long. With a scan for each xid, a window of 16 events that had been in progress took 20 µs,
// not 12.
static void scan_index(LogReader* reader, const OpenSegment& segment, const Snapshot& from,
                       const Settled& settled, const Snapshot& to) {
    uint64 wanted = next_in_window(from.xmin, from, to);
    if (wanted >= to.xmax)
        return;
    IndexScanDesc scan =
        compat::begin_index_scan(segment.table, segment.index, GetActiveSnapshot(), 2);
    scan->xs_want_itup = true;
    seek(scan, wanted, to.xmax);
    int passed = 0;
    while (ItemPointer place = index_getnext_tid(scan, ForwardScanDirection)) {
        CHECK_FOR_INTERRUPTS();
        bool is_null;
        const uint64 xid =
            DatumGetUInt64(index_getattr(scan->xs_itup, 1, scan->xs_itupdesc, &is_null));
        const int64 position =
            DatumGetInt64(index_getattr(scan->xs_itup, 2, scan->xs_itupdesc, &is_null));
        if (xid > wanted)
            wanted = next_in_window(xid, from, to);
        if (xid == wanted) {
            passed = 0;
            take_entry(reader, segment, xid, position, *place, settled, to);
        } else if (wanted >= to.xmax) {
            break;
        } else if (++passed == max_entries_passed) {
            passed = 0;
            seek(scan, wanted, to.xmax);
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
    reader->files[number] = table->rd_rel->relfilenode;
    if (RelationGetNumberOfBlocks(table) > 0) {
        const OpenSegment segment = {static_cast<uint16>(number), table, open_order_index(table)};
        reader->last_xid = 0;
        scan_index(reader, segment, from, settled, to);
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

static void begin_window(LogReader* reader, const Snapshot& from, const Settled& settled,
                         const Snapshot& to) {
    reader->last_position = PG_INT64_MIN;
    run_core([&] { *reader->window = {from, to, settled}; });
}

// Returns -1 if the log is gone.
static int64 scan_segments(LogReader* reader) {
    const WindowBounds& window = *reader->window;
    reset_spool(reader->spool);
    reader->commits = 0;
    reader->commits_end = InvalidXLogRecPtr;
    reader->segments = 0;
    reader->sharing->scanned = true;
    for (int i = 0; i < segment_count; i++)
        if (!scan_segment(reader, i, window.from, window.settled, window.to))
            return -1;
    return static_cast<int64>(sort_spool(reader->spool));
}

int64 collect_window(LogReader* reader, const Snapshot& from, const Settled& settled,
                     const Snapshot& to) {
    begin_window(reader, from, settled, to);
    return scan_segments(reader);
}

// Agrees with other relays where the window ends.
static void share_window(LogReader* reader, const Snapshot& from, Snapshot& to) {
    Sharing& sharing = *reader->sharing;
    sharing.window = agree_on_window(from, !sharing.began, sharing.completed, to);
    sharing.gives = true;
    if (sharing.window.is_old)
        must_look_again();
    // The end may be that of a later snapshot.
    PopActiveSnapshot();
    PushActiveSnapshot(GetTransactionSnapshot());
}

int64 scan_window(LogReader* reader, const Snapshot& from, const Settled& settled, bool shares,
                  Snapshot& to) {
    copy_active_snapshot(to);
    reader->sharing->window = {};
    if (shares && !settled.any)
        share_window(reader, from, to);
    reader->sharing->began = true;
    const int64 count = collect_window(reader, from, settled, to);
    if (count > 0)
        flush_commits(reader);
    if (count >= 0 && reader->sharing->window.number != 0)
        window_is_read(reader->sharing->window.number, count);
    return count;
}

int64 take_window(LogReader* reader, const Snapshot& from, Snapshot& to) {
    Sharing& sharing = *reader->sharing;
    sharing.completed = compat::completed_transactions();
    if (!sharing.began)
        return -1;
    sharing.window = find_window(from, sharing.completed, to);
    if (sharing.window.number == 0)
        return -1;
    begin_window(reader, from, {}, to);
    sharing.scanned = false;
    sharing.gives = true;
    if (sharing.window.is_old)
        must_look_again();
    return sharing.window.count;
}

// VACUUM FULL, CLUSTER and the like write a segment anew, so that its rows have other places.
// fetch_row() cannot see that: a place without a row is that of a row which was rolled back. The
// caller's transaction keeps the segments as they are from here on.
static bool places_are_valid(const LogReader* reader) {
    for (int i = 0; i < segment_count; i++) {
        if ((reader->segments & 1U << i) == 0)
            continue;
        Relation segment = try_open_segment(i);
        if (segment == nullptr)
            return false;
        const bool same = segment->rd_rel->relfilenode == reader->files[i];
        table_close(segment, NoLock);
        if (!same)
            return false;
    }
    return true;
}

// Scans the window, if the places of its events are not known: it was taken from other relays, whose
// blocks did not suffice, or its segments were written anew. Rows that are gone by now are of events
// that this destination does not select. Returns false if the log is gone.
static bool find_places(LogReader* reader) {
    return (reader->sharing->scanned && places_are_valid(reader)) || scan_segments(reader) >= 0;
}

// ---------------------------------------------------------------------------------------------
// Reading the events of a window
// ---------------------------------------------------------------------------------------------

// `to_all` is false if the event is for one destination only, this one or another.
static bool is_for(std::int32_t destination, TupleTableSlot* slot, bool& to_all) {
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
    bool is_whole;  // if it is not, copy_event() says so
    const Bytes topic = readable_utf8(value, is_whole);
    return topics.matches({topic.data, topic.size});
}

int64 last_position_read(const LogReader* reader) {
    return reader->last_position;
}

static bool is_recorded(const std::vector<std::int64_t>& recorded, int64 position) {
    return std::binary_search(recorded.begin(), recorded.end(), position);
}

// Returns whether the block had room for all that match.
static bool take_from(LogReader* reader, const BorrowedBlock& from, const TopicFilter& topics,
                      const std::vector<std::int64_t>& recorded, EventBlock& block) {
    const auto next = std::upper_bound(
        from.events.begin(), from.events.end(), reader->last_position,
        [](int64 position, const Event& event) { return position < event.position; });
    for (const Event& event : std::span(next, from.events.end())) {
        if (topics.matches(event.topic) && !is_recorded(recorded, event.position) &&
            !block.append_copy(event))
            return false;
        reader->last_position = event.position;
    }
    reader->last_position = from.last;
    return true;
}

Others take_events(LogReader* reader, const TopicFilter& topics,
                   const std::vector<std::int64_t>& recorded, EventBlock& block,
                   ReadResult& result) {
    Sharing& sharing = *reader->sharing;
    result = ReadResult::more;
    if (sharing.window.number == 0)
        return Others::have_not_read;
    const int64 start = reader->last_position;
    bool goes_on = true;
    while (goes_on && block.events().size() < EventBlock::max_events / 2) {
        const BorrowedBlock borrowed = borrow_block(sharing.window.number, reader->last_position);
        if (borrowed.index < 0)
            break;
        goes_on = take_from(reader, borrowed, topics, recorded, block);
        const bool is_last = goes_on && borrowed.end_of_window;
        give_back(borrowed);
        if (is_last) {
            result = ReadResult::end_of_window;
            return Others::have_read;
        }
    }
    if (reader->last_position != start)
        return Others::have_read;
    // The first events of a window, which may be all, do not wait.
    return start != PG_INT64_MIN && is_begun(sharing.window.number, start) &&
                   std::exchange(sharing.waited_for, start) != start
               ? Others::are_reading
               : Others::have_not_read;
}

// Others may have a block if it has all events that were read, and none is for one destination only.
static void give_block(LogReader* reader, int64 after, bool end_of_window, EventBlock& block) {
    Sharing& sharing = *reader->sharing;
    if (sharing.window.number == 0 || !sharing.gives)
        return;
    sharing.gives = share_block(sharing.window.number, after, reader->last_position, end_of_window,
                                block.events());
    if (!end_of_window && sharing.window.followers > 1)
        sched_yield();
}

static void pass(LogReader* reader, const WindowEntry& entry) {
    reader->last_position = entry.position;
    drop_from_spool(reader->spool);
}

ReadResult read_events(LogReader* reader, std::int32_t destination, const TopicFilter& topics,
                       const std::vector<std::int64_t>& recorded, Expressions* expressions,
                       EventBlock& block) {
    if (!find_places(reader))
        return ReadResult::log_is_gone;
    const WindowEntry* entry;
    while ((entry = peek_spool(reader->spool)) != nullptr &&
           entry->position <= reader->last_position)
        drop_from_spool(reader->spool);  // read already

    const int64 after = reader->last_position;
    bool is_complete = topics.matches_everything() && expressions == nullptr;
    if (is_complete && reader->sharing->window.number != 0 && reader->sharing->gives)
        begin_block(reader->sharing->window.number, after);
    RowFetcher& fetcher = reader->fetcher;
    begin_fetching(fetcher);
    MemoryContext row_context =
        AllocSetContextCreate(CurrentMemoryContext, "outbox row", ALLOCSET_DEFAULT_SIZES);
    MemoryContext outer = MemoryContextSwitchTo(row_context);

    int rows = 0;
    bool gone = false;
    for (; (entry = peek_spool(reader->spool)) != nullptr; pass(reader, *entry)) {
        if (rows == max_rows_at_once ||
            (expressions != nullptr && rows > 0 && expressions->took_long()))
            break;
        rows++;
        if (is_recorded(recorded, entry->position)) {
            is_complete = false;
            continue;
        }
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
        bool to_all = false;
        const bool selected = topic_matches(topics, row) && is_for(destination, row, to_all);
        is_complete = is_complete && to_all;  // others must not get events that are for one only
        if (!selected)
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
    if (is_complete)
        give_block(reader, after, entry == nullptr, block);
    if (reader->sharing->window.number != 0)
        end_block(reader->sharing->window.number, after);
    return entry == nullptr ? ReadResult::end_of_window : ReadResult::more;
}

}  // namespace outbox
