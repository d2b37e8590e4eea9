// outbox.enqueue: an event into the log, in the caller's transaction.
//
// The row goes straight through the table access method: no SPI, no plan, no trigger, and no
// privilege on the log is needed beyond EXECUTE on the function. Which topics that includes, says
// outbox.producer.
#include "event_input.hpp"
#include "log.hpp"
#include "pg.hpp"
#include "producer.hpp"
#include "shared_state.hpp"
#include "source_event.hpp"
#include "wakeup.hpp"

namespace outbox {

// Rows of a batch that are written together.
static constexpr int rows_at_once = 500;

// The log, opened for the length of one call.
struct LogWriter {
    Relation segment;
    EState* executor;
    ResultRelInfo* target;
    FullTransactionId xid;
    CommandId command;
    BulkInsertState bulk;
};

static void check_may_enqueue() {
    if (IsBinaryUpgrade)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("cannot enqueue events while pg_upgrade is at work")));
    if (RecoveryInProgress())
        ereport(ERROR,
                (errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
                 errmsg("cannot enqueue events on a standby"),
                 errhint("Enqueue on the primary, in the transaction that changes the data.")));
    PreventCommandIfReadOnly("outbox.enqueue()");
    if (IsInParallelMode())
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_TRANSACTION_STATE),
                 errmsg("cannot enqueue events during a parallel operation"),
                 errhint("Declare the function that calls outbox.enqueue() as PARALLEL UNSAFE.")));
    log_relations();  // before anything is done that counts on their form

    static bool warned = false;
    if (shared == nullptr && !warned) {
        warned = true;
        ereport(WARNING,
                (errmsg("events are kept, but nothing delivers them: pg_outbox is not preloaded"),
                 errhint("Add pg_outbox to shared_preload_libraries and restart the server.")));
    }
}

static LogWriter open_log() {
    LogWriter writer{};
    // The xid before any position: readers rely on it (see log_reader.cpp).
    writer.xid = GetTopFullTransactionId();
    writer.command = GetCurrentCommandId(true);
    const LogRelations& log = log_relations();
    writer.segment = table_open(log.segments[log.current], RowExclusiveLock);
    writer.executor = CreateExecutorState();
    writer.target = makeNode(ResultRelInfo);
    InitResultRelInfo(writer.target, writer.segment, 0, nullptr, 0);
    ExecOpenIndices(writer.target, false);
    return writer;
}

static void close_log(LogWriter& writer) {
    ExecCloseIndices(writer.target);
    FreeExecutorState(writer.executor);
    table_close(writer.segment, NoLock);  // the lock goes with the transaction
    wake_at_commit(WakeRelays);
}

static void set_order(const LogWriter& writer, Datum* values) {
    values[LogXid] = UInt64GetDatum(U64FromFullTransactionId(writer.xid));
    values[LogPosition] = Int64GetDatum(nextval_internal(log_relations().positions, false));
}

static TupleTableSlot* make_slot(const LogWriter& writer) {
    return MakeSingleTupleTableSlot(RelationGetDescr(writer.segment), &TTSOpsVirtual);
}

// Returns the id of the event: the new one, or with a source event the one enqueued for it before.
static Datum enqueue_one(const EventInput& input) {
    Datum values[LogColumns];
    bool nulls[LogColumns];
    fill_event(input, values, nulls);
    check_may_produce(values[LogTopic]);
    if (input.source_event_id != nullptr) {
        const pg_uuid_t* earlier = claim_source_event(values);
        if (earlier != nullptr)
            return UUIDPGetDatum(earlier);
    }

    LogWriter writer = open_log();
    set_order(writer, values);
    TupleTableSlot* slot = make_slot(writer);
    memcpy(slot->tts_values, values, sizeof values);
    memcpy(slot->tts_isnull, nulls, sizeof nulls);
    ExecStoreVirtualTuple(slot);
    table_tuple_insert(writer.segment, slot, writer.command, 0, nullptr);
    compat::insert_index_entries(writer.target, slot, writer.executor);
    ExecDropSingleTupleTableSlot(slot);
    close_log(writer);
    return values[LogEventId];
}

// ---------------------------------------------------------------------------------------------
// One event
// ---------------------------------------------------------------------------------------------

static text* text_argument(FunctionCallInfo fcinfo, int n) {
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_TEXT_PP(n);
}

// The arguments both forms share, from `first` on: version, topic, ordering_key, headers,
// schema_version, event_id, source_event_id, occurred_at.
static void take_options(FunctionCallInfo fcinfo, int first, EventInput& input) {
    input.aggregate_type = text_argument(fcinfo, 0);
    input.aggregate_id = text_argument(fcinfo, 1);
    input.event_type = text_argument(fcinfo, 2);
    input.has_version = !PG_ARGISNULL(first);
    input.version = input.has_version ? PG_GETARG_INT64(first) : 0;
    input.topic = text_argument(fcinfo, first + 1);
    input.ordering_key = text_argument(fcinfo, first + 2);
    input.headers = PG_ARGISNULL(first + 3) ? nullptr : PG_GETARG_JSONB_P(first + 3);
    input.has_schema_version = !PG_ARGISNULL(first + 4);
    input.schema_version = input.has_schema_version ? PG_GETARG_INT32(first + 4) : 0;
    input.event_id = PG_ARGISNULL(first + 5) ? nullptr : PG_GETARG_UUID_P(first + 5);
    input.source_event_id = PG_ARGISNULL(first + 6) ? nullptr : PG_GETARG_UUID_P(first + 6);
    input.has_occurred_at = !PG_ARGISNULL(first + 7);
    input.occurred_at = input.has_occurred_at ? PG_GETARG_TIMESTAMPTZ(first + 7) : 0;
}

// ---------------------------------------------------------------------------------------------
// A batch
// ---------------------------------------------------------------------------------------------

// Attributes of outbox.new_event, in the order of sql/pg_outbox/enqueue.sql (zero-based).
enum NewEventAttribute {
    NewAggregateType,
    NewAggregateId,
    NewEventType,
    NewPayload,
    NewVersion,
    NewTopic,
    NewOrderingKey,
    NewHeaders,
    NewSchemaVersion,
    NewEventId,
    NewSourceEventId,
    NewOccurredAt,
    NewContentType,
    NewData,
    NewEventAttributes
};

static EventInput input_from_row(HeapTupleHeader row, TupleDesc descriptor) {
    HeapTupleData tuple;
    tuple.t_len = HeapTupleHeaderGetDatumLength(row);
    ItemPointerSetInvalid(&tuple.t_self);
    tuple.t_tableOid = InvalidOid;
    tuple.t_data = row;
    Datum v[NewEventAttributes];
    bool n[NewEventAttributes];
    heap_deform_tuple(&tuple, descriptor, v, n);

    auto as_text = [&](int i) { return n[i] ? nullptr : DatumGetTextPP(v[i]); };
    EventInput input{};
    input.aggregate_type = as_text(NewAggregateType);
    input.aggregate_id = as_text(NewAggregateId);
    input.event_type = as_text(NewEventType);
    input.json = n[NewPayload] ? nullptr : DatumGetJsonbP(v[NewPayload]);
    input.bytes = n[NewData] ? nullptr : DatumGetByteaPP(v[NewData]);
    input.content_type = as_text(NewContentType);
    if (input.json != nullptr && (input.bytes != nullptr || input.content_type != nullptr))
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("an event has either a payload, or data with a content_type, not both")));
    input.has_version = !n[NewVersion];
    input.version = n[NewVersion] ? 0 : DatumGetInt64(v[NewVersion]);
    input.topic = as_text(NewTopic);
    input.ordering_key = as_text(NewOrderingKey);
    input.headers = n[NewHeaders] ? nullptr : DatumGetJsonbP(v[NewHeaders]);
    input.has_schema_version = !n[NewSchemaVersion];
    input.schema_version = n[NewSchemaVersion] ? 0 : DatumGetInt32(v[NewSchemaVersion]);
    input.event_id = n[NewEventId] ? nullptr : DatumGetUUIDP(v[NewEventId]);
    input.source_event_id = n[NewSourceEventId] ? nullptr : DatumGetUUIDP(v[NewSourceEventId]);
    input.has_occurred_at = !n[NewOccurredAt];
    input.occurred_at = n[NewOccurredAt] ? 0 : DatumGetTimestampTz(v[NewOccurredAt]);
    return input;
}

static void insert_rows(LogWriter& writer, TupleTableSlot** slots, int count) {
    if (count == 0)
        return;
    table_multi_insert(writer.segment, slots, count, writer.command, 0, writer.bulk);
    for (int i = 0; i < count; i++)
        compat::insert_index_entries(writer.target, slots[i], writer.executor);
}

// Says which event of a batch an error is about.
static void name_event(void* number) {
    errcontext("event %d of the batch", *static_cast<int*>(number));
}

static void enqueue_rows(Datum* rows, const bool* row_nulls, int count, Datum* ids) {
    LogWriter writer = open_log();
    int number = 0;
    ErrorContextCallback context = {error_context_stack, name_event, &number};
    error_context_stack = &context;
    writer.bulk = GetBulkInsertState();

    const int slot_count = Min(count, rows_at_once);
    auto** slots = static_cast<TupleTableSlot**>(palloc(sizeof(TupleTableSlot*) * slot_count));
    for (int i = 0; i < slot_count; i++)
        slots[i] = make_slot(writer);
    // Detoasted and converted values of the rows at hand; the ids outlive them.
    MemoryContext rows_context =
        AllocSetContextCreate(CurrentMemoryContext, "outbox rows", ALLOCSET_DEFAULT_SIZES);
    MemoryContext outer = CurrentMemoryContext;
    TupleDesc descriptor = nullptr;

    int filled = 0;
    for (int i = 0; i < count; i++) {
        number = i + 1;
        if (row_nulls != nullptr && row_nulls[i])
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("event is null")));
        MemoryContextSwitchTo(rows_context);
        HeapTupleHeader row = DatumGetHeapTupleHeader(rows[i]);
        if (descriptor == nullptr)
            descriptor = lookup_rowtype_tupdesc_copy(HeapTupleHeaderGetTypeId(row),
                                                     HeapTupleHeaderGetTypMod(row));
        TupleTableSlot* slot = ExecClearTuple(slots[filled]);
        const EventInput input = input_from_row(row, descriptor);
        fill_event(input, slot->tts_values, slot->tts_isnull);
        check_may_produce(slot->tts_values[LogTopic]);
        const pg_uuid_t* id = DatumGetUUIDP(slot->tts_values[LogEventId]);
        const pg_uuid_t* earlier =
            input.source_event_id != nullptr ? claim_source_event(slot->tts_values) : nullptr;
        MemoryContextSwitchTo(outer);

        auto* kept = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
        *kept = earlier != nullptr ? *earlier : *id;
        ids[i] = UUIDPGetDatum(kept);
        if (earlier != nullptr)
            continue;

        set_order(writer, slot->tts_values);
        ExecStoreVirtualTuple(slot);
        if (++filled == slot_count) {
            insert_rows(writer, slots, filled);
            filled = 0;
            descriptor = nullptr;
            MemoryContextReset(rows_context);
            CHECK_FOR_INTERRUPTS();
        }
    }
    insert_rows(writer, slots, filled);
    error_context_stack = context.previous;

    FreeBulkInsertState(writer.bulk);
    table_finish_bulk_insert(writer.segment, 0);
    for (int i = 0; i < slot_count; i++)
        ExecDropSingleTupleTableSlot(slots[i]);
    close_log(writer);
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_enqueue_json) {
    outbox::check_may_enqueue();
    outbox::EventInput input{};
    input.json = PG_ARGISNULL(3) ? nullptr : PG_GETARG_JSONB_P(3);
    outbox::take_options(fcinfo, 4, input);
    return outbox::enqueue_one(input);
}

OUTBOX_FUNCTION(outbox_enqueue_bytes) {
    outbox::check_may_enqueue();
    outbox::EventInput input{};
    input.bytes = PG_ARGISNULL(3) ? nullptr : PG_GETARG_BYTEA_PP(3);
    input.content_type = outbox::text_argument(fcinfo, 4);
    if (input.content_type == nullptr)
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("content_type must not be null"),
                 errhint("Write for example 'application/x-protobuf'.")));
    outbox::take_options(fcinfo, 5, input);
    return outbox::enqueue_one(input);
}

OUTBOX_FUNCTION(outbox_enqueue_batch) {
    outbox::check_may_enqueue();
    if (PG_ARGISNULL(0))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("events must not be null")));
    ArrayType* events = PG_GETARG_ARRAYTYPE_P(0);

    int16 length;
    bool by_value;
    char alignment;
    get_typlenbyvalalign(ARR_ELEMTYPE(events), &length, &by_value, &alignment);
    Datum* rows;
    bool* nulls;
    int count;
    deconstruct_array(events, ARR_ELEMTYPE(events), length, by_value, alignment, &rows, &nulls,
                      &count);
    if (count == 0)
        PG_RETURN_ARRAYTYPE_P(construct_empty_array(UUIDOID));

    auto* ids = static_cast<Datum*>(palloc(sizeof(Datum) * count));
    outbox::enqueue_rows(rows, nulls, count, ids);
    PG_RETURN_ARRAYTYPE_P(
        construct_array(ids, count, UUIDOID, sizeof(pg_uuid_t), false, TYPALIGN_CHAR));
}
