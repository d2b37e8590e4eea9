#include "sqs/claims.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sqs/protocol.hpp"

namespace inbox::sqs {

using outbox::Micros;

// ---------------------------------------------------------------------------------------------
// Messages
// ---------------------------------------------------------------------------------------------

void Claims::add(std::vector<Delivery> deliveries, Micros now) {
    for (Delivery& delivery : deliveries) {
        const auto [at, added] =
            held_.try_emplace(delivery.handle, Held{received_++, now + visibility_, due_.end()});
        if (!added)
            continue;
        at->second.due = due_.emplace(now + visibility_ / 2, delivery.handle);
        buffered_.push_back(std::move(delivery));
    }
}

std::vector<Delivery> Claims::take(std::size_t most) {
    const auto end =
        buffered_.begin() + static_cast<std::ptrdiff_t>(std::min(most, buffered_.size()));
    std::vector<Delivery> taken(std::move_iterator(buffered_.begin()), std::move_iterator(end));
    buffered_.erase(buffered_.begin(), end);
    return taken;
}

// Removes a message from those that are extended.
Claims::Parting Claims::part(const std::string& handle, Micros now) {
    const auto found = held_.find(handle);
    if (found == held_.end())
        return {handle, now + visibility_};
    Parting parting{handle, found->second.until};
    if (found->second.due != due_.end())
        due_.erase(found->second.due);
    held_.erase(found);
    return parting;
}

void Claims::ack(std::span<const Delivery> deliveries, Micros now) {
    for (const Delivery& delivery : deliveries)
        removals_.push_back(part(delivery.handle, now));
}

void Claims::nack(std::span<const Delivery> deliveries, Micros now) {
    std::set<std::string_view> keys;
    for (const Delivery& delivery : deliveries) {
        releases_.push_back(part(delivery.handle, now));
        if (order_ && !delivery.event.ordering_key.empty())
            keys.insert(delivery.event.ordering_key);
    }
    const auto is_behind = [&](const Delivery& delivery) {
        return keys.contains(delivery.event.ordering_key);
    };
    for (const Delivery& delivery : buffered_)
        if (is_behind(delivery))
            releases_.push_back(part(delivery.handle, now));
    std::erase_if(buffered_, is_behind);
}

void Claims::give_back_all(Micros now) {
    std::map<std::uint64_t, std::string> in_order;
    for (const auto& [handle, held] : held_)
        in_order.emplace(held.number, handle);
    buffered_.clear();
    for (const auto& [number, handle] : in_order)
        releases_.push_back(part(handle, now));
}

// ---------------------------------------------------------------------------------------------
// Requests
// ---------------------------------------------------------------------------------------------

// Extensions come first, because they cannot wait. With ordering, releases are sent one request
// after the other, and not while an extension of the same message is under way, which might arrive
// later.
std::optional<Claims::Batch> Claims::next(Micros now) {
    if (!due_.empty() && due_.begin()->first <= now)
        return extensions(now);
    if (!removals_.empty())
        return partings(Change::remove, removals_, now);
    const std::size_t count = std::min(releases_.size(), max_per_request);
    const bool are_free =
        std::none_of(releases_.begin(), releases_.begin() + static_cast<std::ptrdiff_t>(count),
                     [&](const Parting& p) { return extending_.contains(p.handle); });
    if (count > 0 && are_free && !(order_ && releasing_)) {
        releasing_ = true;
        return partings(Change::release, releases_, now);
    }
    return std::nullopt;
}

Claims::Batch Claims::partings(Change change, std::deque<Parting>& queue, Micros now) {
    Batch batch{change, {}, {}, now};
    while (!queue.empty() && batch.handles.size() < max_per_request) {
        batch.handles.push_back(std::move(queue.front().handle));
        batch.until.push_back(queue.front().until);
        queue.pop_front();
    }
    sent_ += batch.handles.size();
    return batch;
}

// Includes messages that are due soon, because a request has room for ten.
Claims::Batch Claims::extensions(Micros now) {
    Batch batch{Change::extend, {}, {}, now};
    while (!due_.empty() && due_.begin()->first <= now + visibility_ / 8 &&
           batch.handles.size() < max_per_request) {
        const std::string handle = std::move(due_.begin()->second);
        due_.erase(due_.begin());
        held_.at(handle).due = due_.end();
        extending_.insert(handle);
        batch.handles.push_back(handle);
    }
    return batch;
}

Micros Claims::deadline() const {
    return due_.empty() ? outbox::never : due_.begin()->first;
}

// ---------------------------------------------------------------------------------------------
// Answers
// ---------------------------------------------------------------------------------------------

std::size_t Claims::settle(const Batch& batch, const std::vector<Answer>& answers, Micros now) {
    std::size_t lost = 0;
    std::vector<Parting> again;
    for (std::size_t i = 0; i < batch.handles.size(); i++) {
        const Answer answer = answers.empty() ? Answer::failed : answers[i];
        if (batch.change == Change::extend)
            lost += settle_extension(batch.handles[i], answer, batch, now);
        else if (answer == Answer::failed && now < batch.until[i])
            again.push_back({batch.handles[i], batch.until[i]});
        else if (answer != Answer::done)
            lost++;
    }
    if (batch.change == Change::extend)
        return lost;
    sent_ -= batch.handles.size();
    if (batch.change == Change::release)
        releasing_ = false;
    std::deque<Parting>& queue = batch.change == Change::remove ? removals_ : releases_;
    queue.insert(queue.begin(), again.begin(), again.end());
    return lost;
}

std::size_t Claims::settle_extension(const std::string& handle, Answer answer, const Batch& batch,
                                     Micros now) {
    extending_.erase(handle);
    const auto found = held_.find(handle);
    if (found == held_.end())  // it was settled meanwhile
        return 0;
    Held& held = found->second;
    if (answer == Answer::lost || (answer == Answer::failed && now >= held.until)) {
        held_.erase(found);
        return 1;
    }
    if (answer == Answer::done)
        held.until = batch.sent_at + visibility_;
    const Micros next =
        answer == Answer::done ? batch.sent_at + visibility_ / 2 : now + visibility_ / 16;
    held.due = due_.emplace(next, handle);
    return 0;
}

}  // namespace inbox::sqs
