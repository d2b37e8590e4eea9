// outbox.enqueue(): writes an event into the log, in the caller's transaction.
//
// EXECUTE on the function is the only privilege needed; outbox.producer has the topics that a role
// may use.
#include "extension/base/pg.hpp"
#include "extension/base/table_form.hpp"
#include "extension/log/log_writer.hpp"
#include "extension/produce/event_input.hpp"
#include "extension/produce/producer.hpp"
#include "extension/produce/source_event.hpp"

namespace outbox {

// Number of rows of a batch that are written together.
static constexpr int rows_of_array_at_once = 500;

// Returns the id of the event: the new one, or with a source event the one enqueued for it before.
// In the second case nothing is written: the call takes no xid and wakes no worker.
static Datum enqueue_one(const EventInput& input) {
    Datum values[LogColumns];
    bool nulls[LogColumns];
    fill_event(input, values, nulls);
    check_may_produce(values[LogTopic], GetUserId());
    if (input.source_event_id != nullptr) {
        const pg_uuid_t* earlier = claim_source_event(values);
        if (earlier != nullptr)
            return UUIDPGetDatum(earlier);
    }

    LogWriter writer = open_log();
    TupleTableSlot* row = next_row(writer);
    memcpy(row->tts_values, values, sizeof values);
    memcpy(row->tts_isnull, nulls, sizeof nulls);
    write_row(writer);
    close_log(writer);
    return values[LogEventId];
}

// ---------------------------------------------------------------------------------------------
// One event
// ---------------------------------------------------------------------------------------------

static text* text_argument(FunctionCallInfo fcinfo, int n) {
    return PG_ARGISNULL(n) ? nullptr : PG_GETARG_TEXT_PP(n);
}

// Reads the arguments that both forms share, from `first` on: version, topic, ordering_key,
// headers, schema_version, event_id, source_event_id, occurred_at.
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

// Attributes of outbox.new_event, in the order of sql/pg_outbox/new_event.sql (zero-based).
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

static TupleDesc descriptor_of(HeapTupleHeader event) {
    static constexpr Oid types[] = {TEXTOID, TEXTOID,        TEXTOID,  JSONBOID, INT8OID,
                                    TEXTOID, TEXTOID,        JSONBOID, INT4OID,  UUIDOID,
                                    UUIDOID, TIMESTAMPTZOID, TEXTOID,  BYTEAOID};
    static_assert(lengthof(types) == NewEventAttributes);
    TupleDesc descriptor = lookup_rowtype_tupdesc_copy(HeapTupleHeaderGetTypeId(event),
                                                       HeapTupleHeaderGetTypMod(event));
    check_attributes("new_event", descriptor, types);
    return descriptor;
}

static EventInput input_from_row(HeapTupleHeader row, TupleDesc descriptor) {
    HeapTupleData tuple;
    tuple.t_len = HeapTupleHeaderGetDatumLength(row);
    ItemPointerSetInvalid(&tuple.t_self);
    tuple.t_tableOid = InvalidOid;
    tuple.t_data = row;
    Datum v[MaxTupleAttributeNumber];  // includes dropped attributes
    bool n[MaxTupleAttributeNumber];
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

// Adds the number of the event in the batch to errors.
static void name_event(void* number) {
    errcontext("event %d of the batch", *static_cast<int*>(number));
}

static void enqueue_rows(Datum* rows, const bool* row_nulls, int count, Datum* ids) {
    LogWriter writer = open_log_for_many(Min(count, rows_of_array_at_once));
    int number = 0;
    ErrorContextCallback context = {error_context_stack, name_event, &number};
    error_context_stack = &context;
    TupleDesc descriptor = nullptr;

    for (int i = 0; i < count; i++) {
        number = i + 1;
        if (row_nulls != nullptr && row_nulls[i])
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("event is null")));
        auto* id = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));  // outlives the row
        ids[i] = UUIDPGetDatum(id);

        MemoryContext outer = MemoryContextSwitchTo(writer.memory);
        HeapTupleHeader event = DatumGetHeapTupleHeader(rows[i]);
        if (descriptor == nullptr)
            descriptor = descriptor_of(event);
        TupleTableSlot* row = next_row(writer);
        const EventInput input = input_from_row(event, descriptor);
        fill_event(input, row->tts_values, row->tts_isnull);
        check_may_produce(row->tts_values[LogTopic], GetUserId());
        const pg_uuid_t* earlier =
            input.source_event_id != nullptr ? claim_source_event(row->tts_values) : nullptr;
        *id = earlier != nullptr ? *earlier : *DatumGetUUIDP(row->tts_values[LogEventId]);
        MemoryContextSwitchTo(outer);

        if (earlier == nullptr && write_row(writer))
            descriptor = nullptr;  // it was in the memory of the rows
    }
    error_context_stack = context.previous;
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
