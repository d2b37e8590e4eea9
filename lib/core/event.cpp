#include "core/event.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

namespace outbox {

EventBlock::EventBlock() {
    events_.reserve(max_events);
}

EventBlock::~EventBlock() {
    std::free(buffer_);
}

Event* EventBlock::append(std::size_t bytes) noexcept {
    if (events_.size() == max_events)
        return nullptr;
    if (buffer_ == nullptr || used_ + bytes > capacity_) {
        if (!events_.empty())
            return nullptr;
        const std::size_t wanted = bytes > usual_bytes ? bytes : usual_bytes;
        char* buffer = static_cast<char*>(std::malloc(wanted));
        if (buffer == nullptr)
            return nullptr;
        std::free(buffer_);
        buffer_ = buffer;
        capacity_ = wanted;
    }
    return &events_.emplace_back();  // within the reserved capacity: cannot throw
}

static std::string_view copy_to(char* buffer, std::size_t& used, const char* data,
                                std::size_t size) noexcept {
    char* to = buffer + used;
    if (size > 0)
        std::memcpy(to, data, size);
    used += size;
    return {to, size};
}

static Header* headers_in(char* buffer, std::size_t& used, std::size_t n) noexcept {
    used = (used + alignof(Header) - 1) & ~(alignof(Header) - 1);
    Header* first = reinterpret_cast<Header*>(buffer + used);
    for (std::size_t i = 0; i < n; i++)
        new (first + i) Header;
    used += n * sizeof(Header);
    return first;
}

static constexpr std::string_view Event::*texts[] = {
    &Event::topic,        &Event::aggregate_type, &Event::aggregate_id, &Event::event_type,
    &Event::ordering_key, &Event::content_type,   &Event::payload,      &Event::fault};

// Returns an upper bound.
static std::size_t room_for(const Event& event) noexcept {
    std::size_t size = 0;
    for (const auto text : texts)
        size += (event.*text).size();
    if (event.headers.empty())
        return size;
    for (const Header& header : event.headers)
        size += header.name.size() + header.value.size();
    return size + EventBlock::headers_bytes(event.headers.size());
}

template <class Room>
static void copy_event(const Event& from, Event& to, Room& room) noexcept {
    const auto copy = [&room](std::string_view text) {
        return room.copy(text.data(), text.size());
    };
    to = from;
    to.tracked = nullptr;
    for (const auto text : texts)
        to.*text = copy(from.*text);
    if (from.headers.empty())
        return;
    Header* header = room.headers(from.headers.size());
    to.headers = {header, from.headers.size()};
    for (const Header& original : from.headers)
        *header++ = {copy(original.name), copy(original.value), original.kind};
}

std::string_view EventBlock::copy(const char* data, std::size_t size) noexcept {
    return copy_to(buffer_, used_, data, size);
}

Header* EventBlock::headers(std::size_t n) noexcept {
    return headers_in(buffer_, used_, n);
}

bool EventBlock::append_copy(const Event& event) noexcept {
    Event* copy = append(room_for(event));
    if (copy != nullptr)
        copy_event(event, *copy, *this);
    return copy != nullptr;
}

void EventBlock::clear() noexcept {
    events_.clear();
    used_ = 0;
    if (capacity_ > usual_bytes) {  // do not keep the memory of one huge event for ever
        std::free(buffer_);
        buffer_ = nullptr;
        capacity_ = 0;
    }
}

std::string_view EventImage::copy(const char* data, std::size_t size) noexcept {
    return copy_to(buffer_, used_, data, size);
}

Header* EventImage::headers(std::size_t n) noexcept {
    return headers_in(buffer_, used_, n);
}

bool EventImage::assign(std::span<const Event> events) noexcept {
    count_ = used_ = 0;
    for (const Event& event : events) {
        if (count_ == EventBlock::max_events || used_ + room_for(event) > sizeof buffer_) {
            count_ = 0;
            return false;
        }
        copy_event(event, *new (events_ + count_ * sizeof(Event)) Event, *this);
        count_++;
    }
    return true;
}

}  // namespace outbox
