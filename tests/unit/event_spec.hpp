// Events in the notation of tests, and their way into a block.
#pragma once

#include <string>

#include "core/event.hpp"

namespace outbox {

struct EventSpec {
    std::int64_t position = 0;
    std::string key{};  // empty if it has none
    std::string payload = "x";
    Micros occurred_at = 0;
    std::string topic{};
    bool key_failed = false;
    std::uint64_t xid = 0;
};

// Returns whether the block had room.
inline bool append(EventBlock& block, const EventSpec& spec) {
    Event* event = block.append(spec.key.size() + spec.payload.size() + spec.topic.size());
    if (event == nullptr)
        return false;
    event->position = spec.position;
    event->xid = spec.xid;
    event->occurred_at = spec.occurred_at;
    event->ordering_key = block.copy(spec.key.data(), spec.key.size());
    event->payload = block.copy(spec.payload.data(), spec.payload.size());
    event->topic = block.copy(spec.topic.data(), spec.topic.size());
    event->has_payload = true;
    event->key_failed = spec.key_failed;
    return true;
}

// Memory of a block of ordinary events, as it counts towards the limit.
inline std::size_t usual_block_bytes() {
    EventBlock block;
    append(block, {.position = 1});
    return block.bytes();
}

}  // namespace outbox
