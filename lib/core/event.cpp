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

std::string_view EventBlock::copy(const char* data, std::size_t size) noexcept {
    char* to = buffer_ + used_;
    if (size > 0)
        std::memcpy(to, data, size);
    used_ += size;
    return {to, size};
}

Header* EventBlock::headers(std::size_t n) noexcept {
    used_ = (used_ + alignof(Header) - 1) & ~(alignof(Header) - 1);
    Header* first = reinterpret_cast<Header*>(buffer_ + used_);
    for (std::size_t i = 0; i < n; i++)
        new (first + i) Header;
    used_ += n * sizeof(Header);
    return first;
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

}  // namespace outbox
