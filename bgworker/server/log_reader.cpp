#include "server/log_reader.hpp"

#include "boundary.hpp"
#include "log.hpp"
#include "server/row_fetcher.hpp"
#include "server/window_spool.hpp"

namespace outbox {

// Up to so many transactions the WAL position of each is looked up; beyond, all WAL is flushed.
static constexpr int max_looked_up_commits = 64;

// Rows looked at in one transaction, even if no topic matches.
static constexpr int max_rows_at_once = 10'000;

// From the Unix epoch to that of PostgreSQL, in microseconds.
static constexpr int64 epoch_difference =
    static_cast<int64>(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY * USECS_PER_SEC;

struct LogReader {
    WindowSpool* spool;
    RowFetcher fetcher;
    bool scanned_before;
    // Of the scan under way.
    uint64 last_xid;
    bool last_xid_finished;
    int commits;
    XLogRecPtr commits_end;
};

LogReader* create_log_reader() {
    auto* reader =
        static_cast<LogReader*>(MemoryContextAllocZero(TopMemoryContext, sizeof(LogReader)));
    reader->spool = create_spool();
    create_row_fetcher(reader->fetcher);
    return reader;
}

// ---------------------------------------------------------------------------------------------
// Snapshots
// ---------------------------------------------------------------------------------------------

// An xid of the last two billion as 64 bits.
static uint64 widen(TransactionId xid, FullTransactionId next) {
    uint64 epoch = EpochFromFullTransactionId(next);
    if (xid > XidFromFullTransactionId(next))
        epoch--;
    return (epoch << 32) | xid;
}

static void copy_snapshot(Snapshot& to, const SnapshotData* from) {
    const FullTransactionId next = ReadNextFullTransactionId();
    const CoreError error = call_core([&] {
        to.xmin = widen(from->xmin, next);
        to.xmax = widen(from->xmax, next);
        to.xip.resize(from->xcnt);
        for (uint32 i = 0; i < from->xcnt; i++)
            to.xip[i] = widen(from->xip[i], next);
        to.order_xip();
    });
    if (error.failed)
        raise(error);
}

// ---------------------------------------------------------------------------------------------
// Scanning a window
// ---------------------------------------------------------------------------------------------

// A commit with synchronous_commit = off is visible before it is on disk. The commit log knows up
// to which WAL position the transactions of this neighbourhood need it; for synchronous ones, no
// further than they flushed themselves.
static void note_commit(LogReader* reader, uint64 xid) {
    if (reader->scanned_before && ++reader->commits <= max_looked_up_commits) {
        const XLogRecPtr end = TransactionIdGetCommitLSN(static_cast<TransactionId>(xid));
        reader->commits_end = Max(reader->commits_end, end);
    }
}

// What GetXLogInsertRecPtr() returns at the start of a page lies behind the page's header: no
// record ends there, and it cannot be flushed to.
static XLogRecPtr end_of_wal() {
    const XLogRecPtr next = GetXLogInsertRecPtr();
    const bool starts_segment = XLogSegmentOffset(next, wal_segment_size) < XLOG_BLCKSZ;
    const Size header = starts_segment ? SizeOfXLogLongPHD : SizeOfXLogShortPHD;
    return next % XLOG_BLCKSZ == header ? next - header : next;
}

static void flush_commits(LogReader* reader) {
    // The first window may hold transactions so old that the commit log has forgotten them.
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

// Adds the entries from (xid >= first) to (xid < end) that `to` sees.
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
        if (reader->last_xid_finished && !is_settled(settled, xid, position))
            add_to_spool(reader->spool, {position, *place, segment.number});
    }
    index_endscan(scan);
}

static bool is_order_index(Relation index) {
    return index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indisvalid &&
           index->rd_index->indnkeyatts == 2 && index->rd_index->indkey.values[0] == LogXid + 1 &&
           index->rd_index->indkey.values[1] == LogPosition + 1;
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

// Adds the entries of one segment. False: the log is gone.
static bool scan_segment(LogReader* reader, int number, const Snapshot& from,
                         const Settled& settled, const Snapshot& to) {
    Relation table = try_open_segment(number);
    if (table == nullptr)
        return false;
    if (RelationGetNumberOfBlocks(table) > 0) {
        const OpenSegment segment = {static_cast<uint16>(number), table, open_order_index(table)};
        reader->last_xid = 0;
        for (uint64 xid : from.xip)  // in progress then
            if (to.finished(xid))
                scan_range(reader, segment, xid, xid + 1, settled, to);
        if (from.xmax < to.xmax)
            scan_range(reader, segment, from.xmax, to.xmax, settled, to);
        index_close(segment.index, AccessShareLock);
    }
    table_close(table, AccessShareLock);
    return true;
}

int64 scan_window(LogReader* reader, const Snapshot& from, const Settled& settled, Snapshot& to) {
    copy_snapshot(to, GetActiveSnapshot());
    reset_spool(reader->spool);
    reader->commits = 0;
    reader->commits_end = InvalidXLogRecPtr;
    for (int i = 0; i < segment_count; i++)
        if (!scan_segment(reader, i, from, settled, to))
            return -1;
    const uint64 count = sort_spool(reader->spool);
    if (count > 0)
        flush_commits(reader);
    return static_cast<int64>(count);
}

// ---------------------------------------------------------------------------------------------
// Reading its events
// ---------------------------------------------------------------------------------------------

// A text or bytea as it lies in the row, or detoasted.
struct Bytes {
    const char* data;
    size_t size;
};

static Bytes bytes_of(Datum value) {
    struct varlena* flat = PG_DETOAST_DATUM_PACKED(value);
    return {VARDATA_ANY(flat), VARSIZE_ANY_EXHDR(flat)};
}

static Bytes utf8_of(Datum value) {
    const Bytes text = bytes_of(value);
    char* converted =
        pg_server_to_any(const_cast<char*>(text.data), static_cast<int>(text.size), PG_UTF8);
    return converted == text.data ? text : Bytes{converted, strlen(converted)};
}

// The headers of an event, taken apart: names and values one after the other.
struct FlatHeaders {
    int count;
    Bytes names[64];
    Bytes values[64];
    Header::Kind kinds[64];
    size_t size;
};

static Bytes utf8_of(const char* data, int length) {
    char* converted = pg_server_to_any(const_cast<char*>(data), length, PG_UTF8);
    return converted == data ? Bytes{data, static_cast<size_t>(length)}
                             : Bytes{converted, strlen(converted)};
}

static void flatten_headers(Jsonb* headers, FlatHeaders* flat) {
    flat->count = 0;
    flat->size = 0;
    JsonbIterator* iterator = JsonbIteratorInit(&headers->root);
    JsonbValue value;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&iterator, &value, true)) != WJB_DONE &&
           flat->count < static_cast<int>(lengthof(flat->names))) {
        const int i = flat->count;
        if (token == WJB_KEY) {
            flat->names[i] = utf8_of(value.val.string.val, value.val.string.len);
            continue;
        }
        if (token != WJB_VALUE)
            continue;
        flat->kinds[i] = Header::Kind::literal;
        switch (value.type) {
            case jbvString:
                flat->kinds[i] = Header::Kind::string;
                flat->values[i] = utf8_of(value.val.string.val, value.val.string.len);
                break;
            case jbvNumeric: {
                const char* digits = DatumGetCString(
                    DirectFunctionCall1(numeric_out, NumericGetDatum(value.val.numeric)));
                flat->values[i] = {digits, strlen(digits)};
                break;
            }
            case jbvBool:
                flat->values[i] = value.val.boolean ? Bytes{"true", 4} : Bytes{"false", 5};
                break;
            default:
                flat->kinds[i] = Header::Kind::null;
                flat->values[i] = {"", 0};
        }
        flat->size += flat->names[i].size + flat->values[i].size;
        flat->count++;
    }
}

static Uuid uuid_of(Datum value) {
    Uuid uuid;
    memcpy(uuid.data(), DatumGetUUIDP(value)->data, uuid.size());
    return uuid;
}

// Copies a row into the block; false when the block has no room for it.
static bool copy_event(TupleTableSlot* slot, EventBlock& block) {
    static constexpr LogColumn text_columns[] = {LogTopic,     LogAggregateType, LogAggregateId,
                                                 LogEventType, LogOrderingKey,   LogContentType};
    static FlatHeaders headers;

    slot_getallattrs(slot);
    const Datum* values = slot->tts_values;
    const bool* nulls = slot->tts_isnull;

    Bytes texts[lengthof(text_columns)];
    Bytes payload = {"", 0};
    size_t size = 0;
    for (size_t i = 0; i < lengthof(text_columns); i++) {
        texts[i] = utf8_of(values[text_columns[i]]);
        size += texts[i].size;
    }
    if (!nulls[LogPayload])
        payload = bytes_of(values[LogPayload]);
    size += payload.size;
    headers.count = 0;
    if (!nulls[LogHeaders]) {
        flatten_headers(DatumGetJsonbP(values[LogHeaders]), &headers);
        size += headers.size + EventBlock::headers_bytes(headers.count);
    }

    Event* event = block.append(size);
    if (event == nullptr) {
        if (block.empty())
            ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"),
                            errdetail("Failed on an event of %zu bytes.", size)));
        return false;
    }
    auto copy = [&](const Bytes& bytes) { return block.copy(bytes.data, bytes.size); };
    event->position = DatumGetInt64(values[LogPosition]);
    event->occurred_at = DatumGetTimestampTz(values[LogOccurredAt]) + epoch_difference;
    event->event_id = uuid_of(values[LogEventId]);
    event->schema_version = DatumGetInt32(values[LogSchemaVersion]);
    event->has_version = !nulls[LogVersion];
    event->version = event->has_version ? DatumGetInt64(values[LogVersion]) : 0;
    event->has_source_event_id = !nulls[LogSourceEventId];
    if (event->has_source_event_id)
        event->source_event_id = uuid_of(values[LogSourceEventId]);
    event->topic = copy(texts[0]);
    event->aggregate_type = copy(texts[1]);
    event->aggregate_id = copy(texts[2]);
    event->event_type = copy(texts[3]);
    event->ordering_key = copy(texts[4]);
    event->content_type = copy(texts[5]);
    event->has_payload = !nulls[LogPayload];
    event->payload = copy(payload);
    if (headers.count > 0) {
        Header* header = block.headers(headers.count);
        event->headers = {header, static_cast<size_t>(headers.count)};
        for (int i = 0; i < headers.count; i++)
            header[i] = {copy(headers.names[i]), copy(headers.values[i]), headers.kinds[i]};
    }
    return true;
}

static bool topic_matches(const TopicFilter& topics, TupleTableSlot* slot) {
    if (topics.matches_everything())
        return true;
    bool is_null;
    const Bytes topic = utf8_of(slot_getattr(slot, LogTopic + 1, &is_null));
    return topics.matches({topic.data, topic.size});
}

ReadResult read_events(LogReader* reader, const TopicFilter& topics, EventBlock& block) {
    RowFetcher& fetcher = reader->fetcher;
    begin_fetching(fetcher);
    MemoryContext row_context =
        AllocSetContextCreate(CurrentMemoryContext, "outbox row", ALLOCSET_DEFAULT_SIZES);
    MemoryContext outer = MemoryContextSwitchTo(row_context);

    const WindowEntry* entry;
    int rows = 0;
    for (; (entry = peek_spool(reader->spool)) != nullptr; drop_from_spool(reader->spool)) {
        if (rows++ == max_rows_at_once)
            break;
        TupleTableSlot* row;
        const Fetched fetched = fetch_row(fetcher, *entry, row);
        if (fetched == Fetched::log_is_gone)
            return ReadResult::log_is_gone;
        if (fetched == Fetched::nothing)
            continue;
        bool is_null;
        if (DatumGetInt64(slot_getattr(row, LogPosition + 1, &is_null)) != entry->position)
            ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                            errmsg("the log was rewritten while it was read"),
                            errdetail("The relay starts over where it has saved its cursor.")));
        if (!topic_matches(topics, row))
            continue;
        if (!copy_event(row, block))
            break;
        MemoryContextReset(row_context);
    }
    MemoryContextSwitchTo(outer);
    MemoryContextDelete(row_context);
    end_fetching(fetcher);
    return entry == nullptr ? ReadResult::end_of_window : ReadResult::more;
}

}  // namespace outbox
