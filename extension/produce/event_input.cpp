#include "extension/produce/event_input.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "core/content_type.hpp"
#include "core/limits.hpp"
#include "core/reserved_headers.hpp"
#include "extension/base/settings.hpp"
#include "extension/log/utf8.hpp"
#include "extension/produce/event_headers.hpp"
#include "extension/produce/uuid7.hpp"

namespace outbox {

// Only views and literals: nothing here has a destructor, because every check may raise an error.

static std::string_view view(const text* value) {
    return {VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value)};
}

static bool has_control(std::string_view text) {
    return std::any_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; });
}

// Destinations get texts in UTF-8. Raises an error if that is impossible.
static void check_utf8(std::string_view value) {
    utf8_of(value.data(), static_cast<int>(value.size()));
}

static void check_length(std::string_view value, const char* argument, int limit) {
    if (value.size() > static_cast<size_t>(limit))
        ereport(ERROR,
                (errcode(ERRCODE_STRING_DATA_RIGHT_TRUNCATION), errmsg("%s is too long", argument),
                 errdetail("It has %zu bytes; at most %d are allowed.", value.size(), limit)));
}

// Names are sent as headers, subjects and routing keys, where control characters break the
// protocol.
static void check_name(const text* value, const char* argument) {
    const std::string_view name = view(value);
    if (name.empty())
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("%s must not be empty", argument)));
    check_length(name, argument, max_name_length);
    if (has_control(name))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("%s must not contain control characters", argument)));
    check_utf8(name);
}

static void check_key(const text* value, const char* argument) {
    check_length(view(value), argument, max_key_length);
    check_utf8(view(value));
}

static void check_required_name(const text* value, const char* argument) {
    if (value == nullptr)
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be null", argument)));
    check_name(value, argument);
}

// ---------------------------------------------------------------------------------------------
// Headers
// ---------------------------------------------------------------------------------------------

static void check_header_name(std::string_view name) {
    const int length = static_cast<int>(name.size());
    if (length > max_header_name_length)
        check_length(name, "name of a header", max_header_name_length);
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_token_character))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("invalid header name \"%.*s\"", length, name.data()),
                        errhint("Use letters, digits and \"-\", \"_\" or \".\".")));

    char lower[max_header_name_length];
    for (int i = 0; i < length; i++)
        lower[i] = pg_ascii_tolower(static_cast<unsigned char>(name[i]));
    const std::string_view lower_name{lower, name.size()};
    if (std::binary_search(std::begin(reserved_headers), std::end(reserved_headers), lower_name) ||
        lower_name.starts_with("ce-") || lower_name.starts_with("ce_"))
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("header name \"%.*s\" is reserved", length, name.data()),
                 errdetail("Headers that frame or authenticate a message, and those that are "
                           "filled from the event, cannot be set."),
                 errhint("Choose another name, such as \"x-%.*s\".", length, name.data())));
}

static void check_header_value(std::string_view name, const JsonbValue& value) {
    switch (value.type) {
        case jbvString: {
            const std::string_view content{value.val.string.val,
                                           static_cast<size_t>(value.val.string.len)};
            if (has_control(content))
                ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                                errmsg("value of header \"%.*s\" contains control characters",
                                       static_cast<int>(name.size()), name.data()),
                                errhint("Line breaks in a header would start another one.")));
            check_utf8(content);
            break;
        }
        case jbvNumeric:
        case jbvBool:
        case jbvNull:
            break;
        default:
            ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                            errmsg("value of header \"%.*s\" is not a scalar",
                                   static_cast<int>(name.size()), name.data()),
                            errhint("Headers are strings, numbers, booleans or null; "
                                    "put structured data into the payload.")));
    }
}

static void check_headers(Jsonb* headers) {
    if (!JB_ROOT_IS_OBJECT(headers))
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("headers must be a JSON object"),
                 errhint("Write for example '{\"traceparent\": \"00-...\"}'.")));
    if (JB_ROOT_COUNT(headers) > max_headers)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("too many headers"),
                        errdetail("There are %d; at most %d are allowed.",
                                  static_cast<int>(JB_ROOT_COUNT(headers)), max_headers)));
    if (VARSIZE(headers) > max_headers_size)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("headers are too large"),
                        errdetail("They have %d bytes; at most %d are allowed.",
                                  static_cast<int>(VARSIZE(headers)), max_headers_size)));

    JsonbIterator* iterator = JsonbIteratorInit(&headers->root);
    JsonbValue value;
    std::string_view name;
    JsonbIteratorToken token;
    while ((token = JsonbIteratorNext(&iterator, &value, true)) != WJB_DONE) {
        if (token == WJB_KEY) {
            name = {value.val.string.val, static_cast<size_t>(value.val.string.len)};
            check_header_name(name);
        } else if (token == WJB_VALUE) {
            check_header_value(name, value);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Payload
// ---------------------------------------------------------------------------------------------

static void check_payload_size(size_t size) {
    if (size > static_cast<size_t>(settings::max_payload_size))
        ereport(ERROR,
                (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("payload is too large"),
                 errdetail("It has %zu bytes; outbox.max_payload_size is %d.", size,
                           settings::max_payload_size),
                 errhint("Store large data elsewhere and put a reference to it into the event.")));
}

// JSON payloads are stored as UTF-8 text in any encoding of the database.
static Datum json_payload(text* json) {
    char* start = VARDATA_ANY(json);
    const int length = static_cast<int>(VARSIZE_ANY_EXHDR(json));
    char* converted = pg_server_to_any(start, length, PG_UTF8);
    check_payload_size(converted == start ? static_cast<size_t>(length) : strlen(converted));
    return PointerGetDatum(converted == start ? json : cstring_to_text(converted));
}

static text* text_of(Jsonb* json) {
    StringInfoData buffer;
    initStringInfo(&buffer);
    appendStringInfoSpaces(&buffer, VARHDRSZ);
    JsonbToCString(&buffer, &json->root, VARSIZE(json));
    SET_VARSIZE(buffer.data, buffer.len);
    return reinterpret_cast<text*>(buffer.data);
}

// Bytes of a JSON type must be JSON, because sinks embed them in documents of their own.
static void check_json_bytes(const bytea* bytes) {
    const int length = static_cast<int>(VARSIZE_ANY_EXHDR(bytes));
    if (!pg_verify_mbstr(PG_UTF8, VARDATA_ANY(bytes), length, true))
        ereport(ERROR,
                (errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE), errmsg("payload is not valid UTF-8"),
                 errhint("Give another content type for data that is not JSON.")));
    char* in_server_encoding = pg_any_to_server(VARDATA_ANY(bytes), length, PG_UTF8);
    if (in_server_encoding == VARDATA_ANY(bytes))
        in_server_encoding = pnstrdup(in_server_encoding, length);
    DirectFunctionCall1(json_in, CStringGetDatum(in_server_encoding));
}

static ContentType check_content_type(const text* content_type) {
    if (content_type == nullptr)
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("content_type must not be null"),
                 errhint("Write for example 'application/x-protobuf'.")));
    check_name(content_type, "content_type");
    const std::optional<ContentType> type = ContentType::parse(view(content_type));
    if (!type)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("content_type is not a media type"),
                        errhint("Write for example 'application/x-protobuf'.")));
    return *type;
}

// ---------------------------------------------------------------------------------------------
// The row
// ---------------------------------------------------------------------------------------------

// Times that RFC 3339 can write, so that all destinations can read them: 0001-01-01 to 9999-12-31.
static constexpr TimestampTz first_timestamp =
    static_cast<TimestampTz>(1721426 - POSTGRES_EPOCH_JDATE) * USECS_PER_DAY;
static constexpr TimestampTz last_timestamp =
    static_cast<TimestampTz>(5373485 - POSTGRES_EPOCH_JDATE) * USECS_PER_DAY - 1;

static Datum default_topic(const text* aggregate_type) {
    const std::string_view type = view(aggregate_type);
    check_length(type, "aggregate_type, from which the topic is made,", max_length_before_suffix);
    text* topic = static_cast<text*>(palloc(VARHDRSZ + type.size() + topic_suffix.size()));
    SET_VARSIZE(topic, VARHDRSZ + type.size() + topic_suffix.size());
    memcpy(VARDATA(topic), type.data(), type.size());
    memcpy(VARDATA(topic) + type.size(), topic_suffix.data(), topic_suffix.size());
    return PointerGetDatum(topic);
}

static Datum json_content_type() {
    static const struct {
        char header[VARHDRSZ_SHORT];
        char value[16];
    } short_text = {
        {0}, {'a', 'p', 'p', 'l', 'i', 'c', 'a', 't', 'i', 'o', 'n', '/', 'j', 's', 'o', 'n'}};
    static char aligned[sizeof short_text];
    memcpy(aligned, &short_text, sizeof short_text);
    SET_VARSIZE_SHORT(aligned, sizeof short_text);
    return PointerGetDatum(aligned);
}

void fill_event(const EventInput& input, Datum* values, bool* nulls) {
    check_required_name(input.aggregate_type, "aggregate_type");
    if (input.aggregate_id == nullptr)
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("aggregate_id must not be null")));
    if (VARSIZE_ANY_EXHDR(input.aggregate_id) == 0)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("aggregate_id must not be empty")));
    check_key(input.aggregate_id, "aggregate_id");
    check_required_name(input.event_type, "event_type");
    if (input.topic != nullptr)
        check_name(input.topic, "topic");
    if (input.ordering_key != nullptr)
        check_key(input.ordering_key, "ordering_key");
    if (input.headers != nullptr)
        check_headers(input.headers);
    if (input.has_schema_version && input.schema_version < 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("schema_version must be at least 1")));

    if (input.has_occurred_at &&
        (input.occurred_at < first_timestamp || input.occurred_at > last_timestamp))
        ereport(ERROR, (errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
                        errmsg("occurred_at must lie in the years 1 to 9999")));

    memset(nulls, 0, sizeof(bool) * LogColumns);
    nulls[LogOnlyTo] = true;
    values[LogTopic] =
        input.topic != nullptr ? PointerGetDatum(input.topic) : default_topic(input.aggregate_type);
    values[LogAggregateType] = PointerGetDatum(input.aggregate_type);
    values[LogAggregateId] = PointerGetDatum(input.aggregate_id);
    values[LogEventType] = PointerGetDatum(input.event_type);
    values[LogOrderingKey] =
        PointerGetDatum(input.ordering_key != nullptr ? input.ordering_key : input.aggregate_id);

    if (input.bytes != nullptr || input.content_type != nullptr) {
        const ContentType type = check_content_type(input.content_type);
        if (input.bytes != nullptr) {
            check_payload_size(VARSIZE_ANY_EXHDR(input.bytes));
            if (type.is_json())
                check_json_bytes(input.bytes);
        }
        values[LogContentType] = PointerGetDatum(input.content_type);
        values[LogPayload] = PointerGetDatum(input.bytes);
        nulls[LogPayload] = input.bytes == nullptr;
    } else {
        text* json = input.json != nullptr ? text_of(input.json) : input.json_text;
        values[LogContentType] = json_content_type();
        nulls[LogPayload] = json == nullptr;
        values[LogPayload] = json != nullptr ? json_payload(json) : Datum{0};
    }

    Jsonb* headers = input.no_trace ? input.headers : with_trace_context(input.headers);
    values[LogHeaders] = PointerGetDatum(headers);
    nulls[LogHeaders] = headers == nullptr || JB_ROOT_COUNT(headers) == 0;
    values[LogVersion] = Int64GetDatum(input.version);
    nulls[LogVersion] = !input.has_version;
    values[LogSchemaVersion] = Int32GetDatum(input.has_schema_version ? input.schema_version : 1);
    values[LogSourceEventId] = UUIDPGetDatum(input.source_event_id);
    nulls[LogSourceEventId] = input.source_event_id == nullptr;
    values[LogOccurredAt] =
        TimestampTzGetDatum(input.has_occurred_at ? input.occurred_at : GetCurrentTimestamp());
    if (input.event_id != nullptr) {
        values[LogEventId] = UUIDPGetDatum(input.event_id);
    } else {
        auto* id = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
        make_uuid7(id);
        values[LogEventId] = UUIDPGetDatum(id);
    }
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_is_content_type) {
    PG_RETURN_BOOL(outbox::ContentType::parse(outbox::view(PG_GETARG_TEXT_PP(0))).has_value());
}
