// Decodes a message of a broker, attributes and a body, as an event. The attributes say which of
// these forms it has:
//
//   attributes   the default form of pg_outbox's sinks: `event_id`, `event_type`, ...; all other
//                attributes are headers
//   binary       CloudEvents 1.0 with attributes `ce-id`, `ce-type`, ...
//   structured   a CloudEvents document as the body, `content-type` application/cloudevents+json
//
// Every message becomes an event. Without an id it gets one that is the same when it is delivered
// again. Texts that cannot be parsed stay in the headers and the payload.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "inbox/event.hpp"

namespace inbox {

// Values for fields that the message does not have.
struct Fallback {
    std::string source;      // unique together with message_id
    std::string message_id;  // the broker's id of the message
    std::string topic;
    // Ordering key of the broker. The broker orders by it, so it takes precedence over the message.
    std::string ordering_key;
    Time published_at{};
};

// Texts of the event are UTF-8 without NUL, whatever the message has. Throws std::bad_alloc only.
Event decode_message(const std::map<std::string, std::string>& attributes, std::string body,
                     const Fallback& fallback);

// Returns the members of a JSON object, for brokers with room for few attributes: texts unchanged,
// anything else as JSON. Returns std::nullopt if the text is not an object.
std::optional<std::map<std::string, std::string>> members_of_json(std::string_view document);

// Replaces a header `headers` that has such an object by the headers in it.
void take_headers(Event& event);

// Returns a text that is the same for the same attributes and body, and for no others. It completes
// an id that begins again with the stream.
std::string digest_of(const std::map<std::string, std::string>& attributes, std::string_view body);

// Returns true for a text of digits: an id that its sender seems to count. It is given again by
// another sender, and by one that starts again.
bool is_counted(std::string_view id);

// Returns the version 5 UUID (RFC 9562) of a name in the namespace of URLs.
std::string uuid_of_name(std::string_view name);

// Returns the time that a broker gives, or std::nullopt if it is not of the years 1970 to 9999.
template <class Duration>
std::optional<Time> time_of(Duration since_epoch) {
    constexpr std::chrono::sys_days end = std::chrono::year(10000) / 1 / 1;
    if (since_epoch < Duration::zero() ||
        since_epoch.count() >= Duration(end.time_since_epoch()).count())
        return std::nullopt;
    return Time(since_epoch);
}

// Parses RFC 3339: '2023-11-14T22:13:20.123456Z'.
std::optional<Time> parse_time(std::string_view text);

}  // namespace inbox
