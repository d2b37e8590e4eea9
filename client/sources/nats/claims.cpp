#include "nats/claims.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "nats/delivery.hpp"

namespace inbox::nats {

using outbox::Micros;

static constexpr const char* acknowledge = "+ACK";
static constexpr const char* at_once = "-NAK";
// Pause before a message that has to wait for an earlier one is sent again.
static constexpr const char* in_a_while = "-NAK {\"delay\":100000000}";
static constexpr const char* in_progress = "+WPI";

static constexpr std::size_t max_awaited = 10'000;  // above this, it looks for old ones

static std::uint64_t sequence_of(const Delivery& delivery) {
    const std::optional<Place> place = place_of(delivery.handle);
    return place ? place->sequence : 0;
}

// Returns true if an earlier message of this key has to come again first.
bool Claims::must_wait(const std::string& key, std::uint64_t sequence, Micros now) {
    const auto found = awaited_.find(key);
    if (key.empty() || found == awaited_.end())
        return false;
    std::map<std::uint64_t, Micros>& awaited = found->second;
    std::erase_if(awaited, [&](const auto& one) { return one.second <= now; });
    const bool waits = !awaited.empty() && awaited.begin()->first < sequence;
    if (!waits)
        awaited.erase(sequence);
    else if (awaited.size() < max_awaited)
        awaited[sequence] = now + 2 * ack_wait_;
    if (awaited.empty())
        awaited_.erase(found);
    return waits;
}

void Claims::add(Delivery delivery, Micros now) {
    const std::uint64_t sequence = sequence_of(delivery);
    if (const auto held = held_.find(sequence); held != held_.end()) {
        held->second.handle = delivery.handle;  // the server sent it again all the same
        return;
    }
    if (must_wait(delivery.event.ordering_key, sequence, now)) {
        commands_.push_back({delivery.handle, in_a_while, true});
        return;
    }
    held_[sequence] = {delivery.handle, due_.emplace(now + ack_wait_ / 2, sequence)};
    buffered_bytes_ += delivery.size;
    buffered_.push_back(std::move(delivery));
}

std::vector<Delivery> Claims::take(std::size_t most) {
    const auto end =
        buffered_.begin() + static_cast<std::ptrdiff_t>(std::min(most, buffered_.size()));
    std::vector<Delivery> taken(std::move_iterator(buffered_.begin()), std::move_iterator(end));
    for (const Delivery& delivery : taken)
        buffered_bytes_ -= delivery.size;
    buffered_.erase(buffered_.begin(), end);
    return taken;
}

// Removes a message from those held. Returns the subject of its acknowledgement.
std::string Claims::part(std::uint64_t sequence, const std::string& handle) {
    const auto found = held_.find(sequence);
    if (found == held_.end())
        return handle;
    std::string last = std::move(found->second.handle);
    due_.erase(found->second.due);
    held_.erase(found);
    return last;
}

bool Claims::is_kept(const Delivery& delivery) const {
    const std::optional<Place> place = kept_.empty() ? std::nullopt : place_of(delivery.handle);
    return place && kept_.contains(place->id());
}

void Claims::consumer_was_replaced() {
    for (const auto& [sequence, held] : held_)
        if (const std::optional<Place> place = place_of(held.handle))
            kept_.insert(place->id());
    held_.clear();
    due_.clear();
    commands_.clear();
    awaited_.clear();
}

void Claims::ack(std::span<const Delivery> deliveries) {
    for (const Delivery& delivery : deliveries)
        if (is_kept(delivery))
            kept_.erase(place_of(delivery.handle)->id());
        else
            commands_.push_back({part(sequence_of(delivery), delivery.handle), acknowledge, true});
}

void Claims::give_back(const Delivery& delivery, Micros now) {
    const std::uint64_t sequence = sequence_of(delivery);
    commands_.push_back({part(sequence, delivery.handle), at_once, true});
    if (delivery.event.ordering_key.empty())
        return;
    if (awaited_.size() >= max_awaited)
        forget_awaited(now);
    awaited_[delivery.event.ordering_key][sequence] = now + 2 * ack_wait_;
}

// Removes keys whose messages have never come again. Nothing else would look at them.
void Claims::forget_awaited(Micros now) {
    for (auto& [key, awaited] : awaited_)
        std::erase_if(awaited, [&](const auto& one) { return one.second <= now; });
    std::erase_if(awaited_, [](const auto& one) { return one.second.empty(); });
}

void Claims::nack(std::span<const Delivery> deliveries, Micros now) {
    std::set<std::string_view> keys;
    std::deque<Delivery> again;
    for (const Delivery& delivery : deliveries) {
        if (is_kept(delivery)) {
            buffered_bytes_ += delivery.size;
            again.push_back(delivery);
            continue;
        }
        give_back(delivery, now);
        if (!delivery.event.ordering_key.empty())
            keys.insert(delivery.event.ordering_key);
    }
    const auto is_behind = [&](const Delivery& delivery) {
        return keys.contains(delivery.event.ordering_key) && !is_kept(delivery);
    };
    for (const Delivery& delivery : buffered_)
        if (is_behind(delivery)) {
            buffered_bytes_ -= delivery.size;
            give_back(delivery, now);
        }
    std::erase_if(buffered_, is_behind);
    buffered_.insert(buffered_.begin(), std::move_iterator(again.begin()),
                     std::move_iterator(again.end()));
}

void Claims::give_back_all() {
    buffered_.clear();
    buffered_bytes_ = 0;
    kept_.clear();
    while (!held_.empty()) {
        const std::uint64_t sequence = held_.begin()->first;
        commands_.push_back({part(sequence, ""), at_once, true});
    }
    awaited_.clear();
}

std::vector<Claims::Command> Claims::next(Micros now) {
    std::vector<Command> found(std::move_iterator(commands_.begin()),
                               std::move_iterator(commands_.end()));
    commands_.clear();
    while (!due_.empty() && due_.begin()->first <= now) {
        const std::uint64_t sequence = due_.begin()->second;
        due_.erase(due_.begin());
        Held& held = held_.at(sequence);
        held.due = due_.emplace(now + std::max<Micros>(ack_wait_ / 2, 1000), sequence);
        found.push_back({held.handle, in_progress, false});
    }
    return found;
}

void Claims::again(std::vector<Command> commands) {
    std::erase_if(commands, [](const Command& command) { return !command.settles; });
    commands_.insert(commands_.begin(), std::move_iterator(commands.begin()),
                     std::move_iterator(commands.end()));
}

Micros Claims::deadline() const {
    if (!commands_.empty())
        return 0;
    return due_.empty() ? outbox::never : due_.begin()->first;
}

}  // namespace inbox::nats
