#include "extension/produce/event_headers.hpp"

#include "core/limits.hpp"
#include "core/trace_context.hpp"
#include "extension/base/settings.hpp"
#include "extension/produce/event_input.hpp"

namespace outbox {

void push_header(JsonbParseState*& state, const char* name, int length, JsonbValue value) {
    JsonbValue key;
    key.type = jbvString;
    key.val.string.val = const_cast<char*>(name);
    key.val.string.len = length;
    pushJsonbValue(&state, WJB_KEY, &key);
    pushJsonbValue(&state, WJB_VALUE, &value);
}

// ---------------------------------------------------------------------------------------------
// Trace context
// ---------------------------------------------------------------------------------------------

// Empty strings if there is none.
struct Trace {
    const char* traceparent;
    const char* tracestate;
};

// Looks at the text of a statement once, and not for each of its rows: the text may be long.
static const TraceContext* trace_of_statement() {
    static const char* statement = nullptr;
    static TimestampTz began = 0;
    static std::optional<TraceContext> context;

    if (debug_query_string == nullptr)
        return nullptr;
    if (statement != debug_query_string || began != GetCurrentStatementStartTimestamp()) {
        statement = debug_query_string;
        began = GetCurrentStatementStartTimestamp();
        context = settings::trace_comments != settings::TraceCommentsOff
                      ? trace_of_comment(statement)
                      : std::nullopt;
    }
    return context ? &*context : nullptr;
}

static Trace current_trace() {
    if (*settings::traceparent != '\0')
        return {settings::traceparent, settings::tracestate};
    if (const TraceContext* context = trace_of_statement())
        return {context->traceparent, context->tracestate};
    // Every role can set these two to any text.
    if (is_traceparent(settings::inbox_traceparent))
        return {settings::inbox_traceparent,
                is_tracestate(settings::inbox_tracestate) ? settings::inbox_tracestate : ""};
    return {"", ""};
}

static void push_text(JsonbParseState*& state, std::string_view name, const char* value) {
    JsonbValue text;
    text.type = jbvString;
    text.val.string.val = const_cast<char*>(value);
    text.val.string.len = static_cast<int>(strlen(value));
    push_header(state, name.data(), static_cast<int>(name.size()), text);
}

static bool can_take_trace(Jsonb* headers) {
    JsonbValue value;
    return static_cast<int>(JB_ROOT_COUNT(headers)) + 2 <= max_headers &&
           getKeyJsonValueFromContainer(&headers->root, "traceparent", strlen("traceparent"),
                                        &value) == nullptr;
}

Jsonb* with_trace_context(Jsonb* headers) {
    const Trace trace = current_trace();
    if (*trace.traceparent == '\0' || (headers != nullptr && !can_take_trace(headers)))
        return headers;
    JsonbParseState* state = nullptr;
    pushJsonbValue(&state, WJB_BEGIN_OBJECT, nullptr);
    push_text(state, "traceparent", trace.traceparent);
    if (*trace.tracestate != '\0')
        push_text(state, "tracestate", trace.tracestate);
    Jsonb* added = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, nullptr));
    if (headers == nullptr)
        return added;
    return DatumGetJsonbP(
        DirectFunctionCall2(jsonb_concat, JsonbPGetDatum(added), JsonbPGetDatum(headers)));
}

}  // namespace outbox
