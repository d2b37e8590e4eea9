#include "redis/claims.hpp"

#include <algorithm>
#include <utility>

namespace inbox::redis {

using outbox::Micros;
using outbox::StreamId;

void Claims::set_due(StreamId id, Due::iterator& due, Micros now) {
    if (due != due_.end())
        due_.erase(due);
    due = due_.emplace(now + interval_, id);
}

void Claims::add(StreamId id, Delivery delivery, Micros now) {
    if (unconfirmed_.contains(id))
        return;
    const auto [held, is_new] = held_.try_emplace(id, due_.end());
    set_due(id, held->second, now);
    if (!is_new)
        return;
    waiting_bytes_ += delivery.size;
    waiting_.emplace(id, std::move(delivery));
}

void Claims::take(std::size_t most, std::vector<Delivery>& taken) {
    const auto take_from = [&](auto& entries) {
        for (; most > 0 && !entries.empty(); most--) {
            Delivery& first = entries.begin()->second;
            waiting_bytes_ -= first.size;
            taken.push_back(std::move(first));
            entries.erase(entries.begin());
        }
    };
    take_from(left_);
    take_from(waiting_);
}

void Claims::forget(StreamId id) {
    kept_.erase(id);
    if (const auto found = held_.find(id); found != held_.end()) {
        if (found->second != due_.end())
            due_.erase(found->second);
        held_.erase(found);
    }
    if (const auto found = waiting_.find(id); found != waiting_.end()) {
        waiting_bytes_ -= found->second.size;
        waiting_.erase(found);
    }
}

void Claims::ack(StreamId id) {
    forget(id);
    if (unconfirmed_.insert(id).second)
        acks_.push_back(id);
}

void Claims::nack(std::uint64_t generation, StreamId id, const Delivery& delivery) {
    if (generation != generation_) {
        if (left_.emplace(std::pair(generation, id), delivery).second)
            waiting_bytes_ += delivery.size;
    } else if (held_.contains(id) && waiting_.emplace(id, delivery).second)
        waiting_bytes_ += delivery.size;
}

Claims::Ids Claims::next_acks(std::size_t most) {
    const auto end = acks_.begin() + static_cast<std::ptrdiff_t>(std::min(most, acks_.size()));
    Ids ids(acks_.begin(), end);
    acks_.erase(acks_.begin(), end);
    return ids;
}

void Claims::confirmed(const Ids& ids) {
    for (const StreamId id : ids)
        unconfirmed_.erase(id);
}

void Claims::again(const Ids& ids) {
    acks_.insert(acks_.begin(), ids.begin(), ids.end());
}

Claims::Ids Claims::next_extensions(std::size_t most, Micros now) {
    Ids ids;
    const Micros until = now + early();
    if (due_.empty() || due_.begin()->first > now)
        return ids;
    while (ids.size() < most && !due_.empty() && due_.begin()->first <= until) {
        const StreamId id = due_.begin()->second;
        due_.erase(due_.begin());
        held_.at(id) = due_.end();
        ids.push_back(id);
    }
    return ids;
}

void Claims::extended(const Ids& ids, Micros now) {
    for (const StreamId id : ids)
        if (const auto found = held_.find(id); found != held_.end())
            set_due(id, found->second, now);
}

Micros Claims::next_extension() const {
    return due_.empty() ? outbox::never : due_.begin()->first;
}

void Claims::lost(const Ids& ids) {
    for (const StreamId id : ids)
        forget(id);
}

void Claims::keep(const Ids& ids) {
    for (const StreamId id : ids)
        if (const auto found = held_.find(id); found != held_.end()) {
            if (found->second != due_.end())
                due_.erase(found->second);
            found->second = due_.end();
            kept_.insert(id);
        }
}

void Claims::begin_generation() {
    for (auto& [id, delivery] : waiting_)
        left_.emplace(std::pair(generation_, id), std::move(delivery));
    generation_++;
    kept_.clear();
    waiting_.clear();
    held_.clear();
    due_.clear();
    acks_.clear();
    unconfirmed_.clear();
}

Claims::Ids Claims::give_back_all() {
    Ids ids;
    for (const auto& [id, due] : held_)
        ids.push_back(id);
    held_.clear();
    due_.clear();
    waiting_.clear();
    kept_.clear();
    left_.clear();
    waiting_bytes_ = 0;
    return ids;
}

}  // namespace inbox::redis
