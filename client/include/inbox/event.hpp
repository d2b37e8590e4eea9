// An event as a handler gets it, and a delivery, which is an event with the data to settle it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace inbox {

// Microseconds since the Unix epoch, the resolution of timestamptz.
using Time = std::chrono::time_point<std::chrono::system_clock, std::chrono::microseconds>;

// Texts are UTF-8. A field that the sender left out is empty or std::nullopt.
struct Event {
    std::string id;                       // UUID in lower case; deduplication compares it
    std::string topic;                    // topic that the event was published to
    std::string aggregate_type;           // such as 'account'
    std::string aggregate_id;             // identifies the aggregate within its type
    std::string type;                     // such as 'AccountOpened'
    std::optional<std::int64_t> version;  // of the aggregate; grows with each change
    std::int32_t schema_version = 1;      // of the payload's format
    std::string ordering_key;  // events of one key arrive in order; empty if order does not matter
    std::string content_type = "application/json";  // media type of the payload
    std::map<std::string, std::string> headers;     // names as the sender wrote them
    std::optional<std::string> payload;             // may hold binary data
    Time occurred_at{};                             // when the sender wrote the event
    std::optional<std::string> source_event_id;     // UUID of the event that caused this one

    // The headers of W3C Trace Context, to go on with the sender's trace. They are valid, or empty.
    // While a handler runs, they are also the settings inbox.traceparent and inbox.tracestate.
    std::string_view traceparent() const noexcept;
    std::string_view tracestate() const noexcept;
};

// An event that a source has handed out and that is not settled yet.
struct Delivery {
    Event event;
    std::string source;      // for people: 'pubsub://project/subscription'
    std::string message_id;  // the source's id of the message; offsets store it
    Time published_at{};     // when the source received it
    std::string handle;  // identifies the delivery when it is settled: an ack id, a receipt handle
    std::size_t size = 0;  // bytes that count against max_outstanding_bytes
};

}  // namespace inbox
