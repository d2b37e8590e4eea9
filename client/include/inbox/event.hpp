// An event as a handler gets it, and a delivery: an event with what its source needs to settle it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace inbox {

using Time = std::chrono::time_point<std::chrono::system_clock, std::chrono::microseconds>;

// Texts are UTF-8. What the sender did not say is empty, or has no value.
struct Event {
    std::string id;  // UUID in its usual form, lower case: what deduplication goes by
    std::string topic;
    std::string aggregate_type;
    std::string aggregate_id;
    std::string type;
    std::optional<std::int64_t> version;  // of the aggregate
    std::int32_t schema_version = 1;
    std::string ordering_key;  // empty: in no order with other events
    std::string content_type = "application/json";
    std::map<std::string, std::string> headers;
    std::optional<std::string> payload;
    Time occurred_at{};
    std::optional<std::string> source_event_id;
};

// What a source handed out and waits to be told about.
struct Delivery {
    Event event;
    std::string source;      // for people who look: 'pubsub://project/subscription', ...
    std::string message_id;  // the source's name for it; what an offset remembers
    Time published_at{};     // when the source got it
    std::string handle;      // by which the source settles it: an ack id, a receipt handle, ...
    std::size_t size = 0;    // bytes, for flow control
};

}  // namespace inbox
