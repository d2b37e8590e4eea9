// A message of a broker as an event: attributes and a body, in whichever of these forms the
// attributes say.
//
//   attributes   what pg_outbox's sinks send unless told otherwise: `event_id`, `event_type`, ...;
//                other attributes are headers
//   binary       CloudEvents 1.0 with attributes `ce-id`, `ce-type`, ...
//   structured   a CloudEvents document as the body, `content-type` application/cloudevents+json
//
// Anybody's message becomes an event: without an id it gets one that is the same when it is
// delivered again, and what makes no sense stays in the headers and the payload.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "inbox/event.hpp"

namespace inbox {

// For what the message itself does not say.
struct Fallback {
    std::string source;      // with message_id: what no other message has
    std::string message_id;  // of the broker
    std::string topic;
    // Of the broker: what it keeps in order counts more than what the message says.
    std::string ordering_key;
    Time published_at{};
};

// Texts come out as UTF-8 without NUL, whatever went in. Throws std::bad_alloc only.
Event decode_message(const std::map<std::string, std::string>& attributes, std::string body,
                     const Fallback& fallback);

// The members of a JSON object, for brokers that have room for few attributes: texts as they are,
// anything else as JSON. None: it is no object.
std::optional<std::map<std::string, std::string>> members_of_json(std::string_view document);

// The version 5 UUID (RFC 9562) of a name in the namespace of URLs.
std::string uuid_of_name(std::string_view name);

// RFC 3339: '2023-11-14T22:13:20.123456Z'.
std::optional<Time> parse_time(std::string_view text);

}  // namespace inbox
