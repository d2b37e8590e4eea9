// Headers that pg_outbox adds to an event.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Adds a member to the object that is being built.
void push_header(JsonbParseState*& state, const char* name, int length, JsonbValue value);

// Returns the headers with `traceparent` and `tracestate` of the session, unless they have a
// `traceparent`, or would be too many. The first of these that has one is used: the setting
// outbox.traceparent, a comment of the client's statement, and the setting inbox.traceparent, which
// says what the handler of an event works for. Both `headers` and the result may be nullptr.
Jsonb* with_trace_context(Jsonb* headers);

}  // namespace outbox
