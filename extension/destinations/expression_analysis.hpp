// The options filter and payload are expressions over the columns of an event. They may only read.
#pragma once

#include "core/destination.hpp"
#include "extension/log/log.hpp"

namespace outbox {

constexpr const char* filter_name = filter_option.name.data();
constexpr const char* payload_name = payload_option.name.data();

// The columns of an event, under the names that they have in outbox.event.
constexpr struct {
    const char* name;
    Oid type;
    LogColumn from;
} expression_columns[] = {{"event_id", UUIDOID, LogEventId},
                          {"topic", TEXTOID, LogTopic},
                          {"aggregate_type", TEXTOID, LogAggregateType},
                          {"aggregate_id", TEXTOID, LogAggregateId},
                          {"event_type", TEXTOID, LogEventType},
                          {"version", INT8OID, LogVersion},
                          {"schema_version", INT4OID, LogSchemaVersion},
                          {"ordering_key", TEXTOID, LogOrderingKey},
                          {"content_type", TEXTOID, LogContentType},
                          {"payload", JSONBOID, LogPayload},
                          {"headers", JSONBOID, LogHeaders},
                          {"occurred_at", TIMESTAMPTZOID, LogOccurredAt},
                          {"source_event_id", UUIDOID, LogSourceEventId},
                          {"position", INT8OID, LogPosition}};
constexpr AttrNumber payload_column = 10;
static_assert(expression_columns[payload_column - 1].from == LogPayload);

// Returns the one of the names above that the option has; nullptr if it is another option.
const char* expression_name(const char* option);

// Returns the expression of the option, one of the names above, for columns of a row with varno 1.
// Raises an error unless it is what it has to be, and the current user may call its functions. Analysis
// may run code of others, so this is called in a sandbox only.
Node* analyze_expression(const char* text, const char* option);

}  // namespace outbox
