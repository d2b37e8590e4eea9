#include "bgworker/relay/event_copy.hpp"

#include "extension/log/log.hpp"

namespace outbox {

// The headers of an event as a flat list: names and values in turn.
struct FlatHeaders {
    int count;
    Bytes names[64];
    Bytes values[64];
    Header::Kind kinds[64];
    size_t size;
};

static void flatten_headers(Jsonb* headers, FlatHeaders* flat, bool& is_whole) {
    flat->count = 0;
    flat->size = 0;
    JsonbIterator* iterator = JsonbIteratorInit(&headers->root);
    JsonbValue value;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&iterator, &value, true)) != WJB_DONE &&
           flat->count < static_cast<int>(lengthof(flat->names))) {
        const int i = flat->count;
        if (token == WJB_KEY) {
            flat->names[i] = readable_utf8(value.val.string.val, value.val.string.len, is_whole);
            continue;
        }
        if (token != WJB_VALUE)
            continue;
        flat->kinds[i] = Header::Kind::literal;
        switch (value.type) {
            case jbvString:
                flat->kinds[i] = Header::Kind::string;
                flat->values[i] =
                    readable_utf8(value.val.string.val, value.val.string.len, is_whole);
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

// The owner of the table may have dropped its constraints.
static void check_not_null(const bool* nulls) {
    static constexpr struct {
        LogColumn column;
        const char* name;
    } required[] = {{LogPosition, "position"},
                    {LogXid, "xid"},
                    {LogOccurredAt, "occurred_at"},
                    {LogEventId, "event_id"},
                    {LogSchemaVersion, "schema_version"},
                    {LogTopic, "topic"},
                    {LogAggregateType, "aggregate_type"},
                    {LogAggregateId, "aggregate_id"},
                    {LogEventType, "event_type"},
                    {LogOrderingKey, "ordering_key"},
                    {LogContentType, "content_type"}};
    for (const auto& field : required)
        if (nulls[field.column])
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("null value in column \"%s\" of an event", field.name),
                            errhint("Give the row a value, or delete it.")));
}

// Adds the position of an unreadable event to the error, so that it can be found and repaired.
static void describe_event(void* argument) {
    const auto* slot = static_cast<const TupleTableSlot*>(argument);
    const char* segment = segment_name(slot->tts_tableOid);
    errcontext("event at position %lld of outbox.%s",
               static_cast<long long>(DatumGetInt64(slot->tts_values[LogPosition])),
               segment != nullptr ? segment : "delivery");
}

static void replace(Bytes& text, const Bytes& by, size_t& size) {
    size += by.size - text.size;
    text = by;
}

// As in outbox_internal.readable().
static constexpr char no_utf8[] = "a name or a header of the event has no form in UTF-8";

static bool copy_columns(TupleTableSlot* slot, EventBlock& block, const EventChange* change) {
    static constexpr LogColumn text_columns[] = {LogTopic,     LogAggregateType, LogAggregateId,
                                                 LogEventType, LogOrderingKey,   LogContentType};
    static FlatHeaders headers;

    const Datum* values = slot->tts_values;
    const bool* nulls = slot->tts_isnull;

    check_not_null(nulls);
    Bytes texts[lengthof(text_columns)];
    Bytes payload = {"", 0};
    size_t size = 0;
    bool is_whole = true;
    for (size_t i = 0; i < lengthof(text_columns); i++) {
        bool is_text_whole = true;
        texts[i] = readable_utf8(values[text_columns[i]], is_text_whole);
        if (!is_text_whole && text_columns[i] == LogOrderingKey)
            texts[i] = {"", 0};  // its place must not be that of another key
        is_whole &= is_text_whole;
        size += texts[i].size;
    }
    bool has_payload = !nulls[LogPayload];
    if (change != nullptr && change->has_new_payload) {
        has_payload = !change->new_payload_is_null;
        payload = change->new_payload;
        if (change->new_payload_is_json)
            replace(texts[lengthof(texts) - 1], {"application/json", 16}, size);
    } else if (has_payload) {
        payload = bytes_of(values[LogPayload]);
    }
    size += payload.size;
    headers.count = 0;
    if (!nulls[LogHeaders]) {
        flatten_headers(DatumGetJsonbP(values[LogHeaders]), &headers, is_whole);
        size += headers.size + EventBlock::headers_bytes(headers.count);
    }

    // Enqueueing refuses such a text. This row was written otherwise.
    Bytes fault = {"", 0};
    if (change != nullptr && change->fault.size > 0)
        fault = change->fault;
    else if (!is_whole)
        fault = {no_utf8, sizeof no_utf8 - 1};
    size += fault.size;

    Event* event = block.append(size);
    if (event == nullptr) {
        if (block.empty())
            ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"),
                            errdetail("Failed on an event of %zu bytes.", size)));
        return false;
    }
    auto copy = [&](const Bytes& bytes) { return block.copy(bytes.data, bytes.size); };
    event->position = DatumGetInt64(values[LogPosition]);
    event->xid = DatumGetUInt64(values[LogXid]);
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
    event->has_payload = has_payload;
    event->payload = copy(payload);
    event->fault = copy(fault);
    if (headers.count > 0) {
        Header* header = block.headers(headers.count);
        event->headers = {header, static_cast<size_t>(headers.count)};
        for (int i = 0; i < headers.count; i++)
            header[i] = {copy(headers.names[i]), copy(headers.values[i]), headers.kinds[i]};
    }
    return true;
}

bool copy_event(TupleTableSlot* slot, EventBlock& block, const EventChange* change) {
    slot_getallattrs(slot);
    ErrorContextCallback context = {error_context_stack, describe_event, slot};
    error_context_stack = &context;
    const bool copied = copy_columns(slot, block, change);
    error_context_stack = context.previous;
    return copied;
}

}  // namespace outbox
