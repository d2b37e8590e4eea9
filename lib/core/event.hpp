// An event on its way to a destination, and the block of memory that holds many of them.
//
// The log reader fills blocks in order of position. The pipeline hands their events to a sink, and
// frees a block when all its events are settled. Nothing here allocates per event: texts, payloads
// and headers lie in the one buffer of the block, and an Event only points into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/text.hpp"

namespace outbox {

struct Tracked;  // the state of an event in the pipeline

// One member of an event's `headers`. Values are scalars only; extension/produce/event_input.cpp
// enforces it.
struct Header {
    enum class Kind : std::uint8_t { string, literal /* number or boolean */, null };
    std::string_view name;
    std::string_view value;
    Kind kind = Kind::string;
};

struct Event {
    std::int64_t position = 0;
    std::uint64_t xid = 0;
    Micros occurred_at = 0;  // microseconds since the Unix epoch
    Uuid event_id{};
    Uuid source_event_id{};
    std::int64_t version = 0;
    std::int32_t schema_version = 1;
    bool has_version = false;
    bool has_source_event_id = false;
    bool has_payload = false;
    bool retry = false;       // it comes from outbox.delivery
    bool has_failed = false;  // retries only: it has failed often enough to be at fault
    // Retries only: has_failed, or the event of its key before it has failed and is a dead letter.
    bool key_failed = false;
    bool replayed = false;  // retries only: an operator wants it to be delivered again
    std::string_view topic;
    std::string_view aggregate_type;
    std::string_view aggregate_id;
    std::string_view event_type;
    std::string_view ordering_key;  // empty if it has none
    std::string_view content_type;
    std::string_view payload;
    std::span<const Header> headers;
    // The error of an expression of its destination (options filter and payload), because of which
    // it cannot be sent. Usually empty.
    std::string_view fault;

    Tracked* tracked = nullptr;
};

class EventBlock {
  public:
    static constexpr std::size_t max_events = 512;
    static constexpr std::size_t usual_bytes = 256 * 1024;
    static constexpr std::size_t bytes_per_event = sizeof(Event) + 88;

    EventBlock();
    EventBlock(const EventBlock&) = delete;
    EventBlock& operator=(const EventBlock&) = delete;
    ~EventBlock();

    // Returns room for one more event with `bytes` of texts, payload and headers, or nullptr if the
    // block is full. An empty block grows to the size of its first event; if it is still empty()
    // after nullptr, memory ran out.
    Event* append(std::size_t bytes) noexcept;

    // Copies into the room that append() reserved, and must not exceed it in total.
    std::string_view copy(const char* data, std::size_t size) noexcept;
    // Returns aligned room for headers. Each call takes headers_bytes(n) of the reserved room.
    Header* headers(std::size_t n) noexcept;
    static constexpr std::size_t headers_bytes(std::size_t n) {
        return n * sizeof(Header) + alignof(Header);
    }

    // Appends a copy of an event. Returns false if there is no room for it.
    bool append_copy(const Event& event) noexcept;

    bool empty() const noexcept { return events_.empty(); }
    std::span<Event> events() noexcept { return events_; }
    // Memory that counts towards the limit: the buffer, and the pipeline's state of the events.
    std::size_t bytes() const noexcept { return capacity_ + max_events * bytes_per_event; }
    void clear() noexcept;

  private:
    char* buffer_ = nullptr;
    std::size_t capacity_ = 0;
    std::size_t used_ = 0;
    std::vector<Event> events_;  // reserved once, so events never move
};

// A copy of a block in memory of a fixed size, which processes may share: it must have the same
// address in all of them.
class EventImage {
  public:
    // Returns false, and holds nothing, if the events need more room than a block usually has.
    bool assign(std::span<const Event> events) noexcept;
    std::span<const Event> events() const noexcept {
        return {reinterpret_cast<const Event*>(events_), count_};
    }

    // As those of EventBlock.
    std::string_view copy(const char* data, std::size_t size) noexcept;
    Header* headers(std::size_t n) noexcept;

  private:
    std::size_t count_;
    std::size_t used_;
    alignas(Event) std::byte events_[EventBlock::max_events * sizeof(Event)];
    alignas(std::max_align_t) char buffer_[EventBlock::usual_bytes];
};

}  // namespace outbox
