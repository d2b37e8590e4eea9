#include "rabbitmq/claims.hpp"

#include <charconv>
#include <iterator>
#include <limits>
#include <utility>

namespace inbox::rabbitmq {

namespace {

struct Handle {
    std::uint64_t channel = 0, tag = 0;
};

std::string text_of(Handle handle) {
    return std::to_string(handle.channel) + '/' + std::to_string(handle.tag);
}

Handle parse_handle(const std::string& text) {
    Handle handle;
    const char* const end = text.data() + text.size();
    const auto channel = std::from_chars(text.data(), end, handle.channel);
    if (channel.ptr != end)
        std::from_chars(channel.ptr + 1, end, handle.tag);
    return handle;
}

}  // namespace

void Claims::begin_channel() {
    channel_++;
    waiting_.clear();
    held_.clear();
    settled_.clear();
}

void Claims::add(std::uint64_t tag, Delivery delivery) {
    delivery.handle = text_of({channel_, tag});
    held_[tag] = State::waiting;
    waiting_.push_back({tag, std::move(delivery)});
}

std::vector<Delivery> Claims::take(std::size_t most) {
    std::vector<Delivery> taken;
    while (!waiting_.empty() && taken.size() < most) {
        held_[waiting_.front().tag] = State::out;
        taken.push_back(std::move(waiting_.front().delivery));
        waiting_.pop_front();
    }
    return taken;
}

bool Claims::is_stale(const Delivery& delivery) const {
    return parse_handle(delivery.handle).channel != channel_;
}

std::map<std::uint64_t, Claims::State>::iterator Claims::find_out(const Delivery& delivery) {
    const Handle handle = parse_handle(delivery.handle);
    if (handle.channel != channel_)
        return held_.end();
    const auto found = held_.find(handle.tag);
    return found != held_.end() && found->second == State::out ? found : held_.end();
}

bool Claims::is_out(const Delivery& delivery) const {
    return const_cast<Claims*>(this)->find_out(delivery) != held_.end();
}

void Claims::ack(std::span<const Delivery> deliveries) {
    for (const Delivery& delivery : deliveries)
        if (const auto found = find_out(delivery); found != held_.end()) {
            settled_.insert(found->first);
            held_.erase(found);
        }
}

// Goes from the last to the first, so that they are in order at the front.
void Claims::nack(std::span<const Delivery> deliveries) {
    for (auto delivery = deliveries.rbegin(); delivery != deliveries.rend(); ++delivery)
        if (const auto found = find_out(*delivery); found != held_.end()) {
            found->second = State::waiting;
            waiting_.push_front({found->first, *delivery});
        }
}

// One acknowledgement is enough for all messages before the first one that is still held.
std::vector<Claims::Ack> Claims::take_acks() {
    std::vector<Ack> acks;
    const auto end = held_.empty() ? settled_.end() : settled_.lower_bound(held_.begin()->first);
    if (end != settled_.begin())
        acks.push_back({*std::prev(end), std::next(settled_.begin()) != end});
    for (auto single = end; single != settled_.end(); ++single)
        acks.push_back({*single, false});
    settled_.clear();
    return acks;
}

}  // namespace inbox::rabbitmq
