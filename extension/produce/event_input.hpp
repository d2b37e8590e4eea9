// Arguments of one event, and checks that none of them can harm a destination.
#pragma once

#include "extension/base/pg.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// Arguments as given, nullptr for NULL. Texts and bytes may have short headers.
struct EventInput {
    text* aggregate_type;
    text* aggregate_id;
    text* event_type;
    Jsonb* json;      // a JSON payload,
    text* json_text;  // or a payload as text that is known to be JSON,
    bytea* bytes;     // or bytes with a content type; all nullptr for an event without data
    text* content_type;
    bool has_version;
    int64 version;
    text* topic;
    text* ordering_key;
    Jsonb* headers;
    bool no_trace;  // for events that are not of the session that writes them
    bool has_schema_version;
    int32 schema_version;
    pg_uuid_t* event_id;
    pg_uuid_t* source_event_id;
    bool has_occurred_at;
    TimestampTz occurred_at;
};

// Raises an error on invalid input. Otherwise fills the row of the log, except position and xid.
void fill_event(const EventInput& input, Datum* values, bool* nulls);

}  // namespace outbox
