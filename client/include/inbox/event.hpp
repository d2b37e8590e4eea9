// An event as a handler gets it, and a delivery: an event with what its source needs to settle it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace inbox {

// Microseconds since the Unix epoch, as timestamptz has them.
using Time = std::chrono::time_point<std::chrono::system_clock, std::chrono::microseconds>;

// Texts are UTF-8. A field that the sender left out is empty or std::nullopt.
struct Event {
    std::string id;                       // UUID in lower case; deduplication compares it
    std::string topic;                    // what the event was published under
    std::string aggregate_type;           // such as 'account'
    std::string aggregate_id;             // identifies the aggregate within its type
    std::string type;                     // such as 'AccountOpened'
    std::optional<std::int64_t> version;  // of the aggregate; grows with each change
    std::int32_t schema_version = 1;      // of the payload's format
    std::string ordering_key;             // events of one key arrive in order; empty: no order
    std::string content_type = "application/json";  // media type of the payload
    std::map<std::string, std::string> headers;     // names as the sender wrote them
    std::optional<std::string> payload;             // may hold binary data
    Time occurred_at{};                             // when the sender wrote the event
    std::optional<std::string> source_event_id;     // UUID of the event that caused this one
};

// An event that a source has handed out and that is not settled yet.
struct Delivery {
    Event event;
    std::string source;      // where it came from, for people: 'pubsub://project/subscription'
    std::string message_id;  // the source's name for it, which an offset remembers
    Time published_at{};     // when the source received it
    std::string handle;      // what the source settles it by: an ack id, a receipt handle
    std::size_t size = 0;    // bytes that count against max_outstanding_bytes
};

}  // namespace inbox
