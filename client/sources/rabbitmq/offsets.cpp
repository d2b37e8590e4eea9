#include "rabbitmq/offsets.hpp"

#include <algorithm>

namespace inbox::rabbitmq {

void Offsets::load(std::int64_t position, Time saved_at) {
    entries_.clear();
    time_.reset();
    next_ = saved_ = position;
    saved_at_ = saved_at;
}

void Offsets::move(Time to) {
    entries_.clear();
    next_.reset();
    saved_.reset();
    time_ = to;
    passed_at_ = to;
}

void Offsets::rewind() {
    next_ = position();
    entries_.clear();
}

bool Offsets::read(std::int64_t offset, Time time) {
    if (next_ && offset < *next_)
        return false;
    entries_.push_back({offset, time, false});
    next_ = offset + 1;
    return true;
}

void Offsets::apply(std::int64_t offset) {
    const auto found = std::ranges::lower_bound(entries_, offset, {}, &Entry::offset);
    if (found == entries_.end() || found->offset != offset)
        return;
    found->is_applied = true;
    while (!entries_.empty() && entries_.front().is_applied) {
        passed_at_ = std::max(passed_at_, entries_.front().time);
        entries_.pop_front();
    }
}

std::optional<std::int64_t> Offsets::position() const {
    return entries_.empty() ? next_ : entries_.front().offset;
}

// pg_inbox saves an offset only if its time is later than the saved one, and times of messages may
// go back.
Position Offsets::position_at(std::int64_t offset, Time newest) {
    saved_ = offset;
    saved_at_ = std::max(newest, saved_at_ + std::chrono::microseconds(1));
    return {subscription_, std::to_string(offset), saved_at_};
}

// A transaction that is rolled back leaves saved_ too high. Its messages come again, and the next
// position after it is saved.
std::vector<Position> Offsets::positions(const std::set<std::int64_t>& applied) {
    Time newest = passed_at_;
    auto entry = entries_.begin();
    for (; entry != entries_.end() && (entry->is_applied || applied.contains(entry->offset));
         ++entry)
        newest = std::max(newest, entry->time);
    if (entry == entries_.begin())
        return {};
    const std::int64_t reached = entry == entries_.end() ? *next_ : entry->offset;
    if (saved_ && reached <= *saved_)
        return {};
    return {position_at(reached, newest)};
}

std::vector<Position> Offsets::moved_positions() {
    const std::optional<std::int64_t> now = position();
    if (!now || (saved_ && *now <= *saved_))
        return {};
    return {position_at(*now, passed_at_)};
}

}  // namespace inbox::rabbitmq
