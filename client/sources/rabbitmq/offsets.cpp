#include "rabbitmq/offsets.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace inbox::rabbitmq {

void Offsets::load(std::int64_t position, Time saved_at, Mark mark) {
    entries_.clear();
    time_.reset();
    next_ = saved_ = position;
    saved_at_ = saved_at;
    mark_ = std::move(mark);
}

void Offsets::move(Time to) {
    entries_.clear();
    next_.reset();
    saved_.reset();
    time_ = to;
    passed_at_ = to;
    mark_ = {};
}

void Offsets::load(Time begin, Time now) {
    move(std::min(begin, now));
    saved_at_ = begin;
}

void Offsets::begin(Time now) {
    load(now, now);
    is_time_saved_ = false;
}

std::size_t Offsets::begin_again() {
    const Time passed = std::max(passed_at_, saved_at_);
    rewind();
    move(passed);
    time_.reset();
    return std::exchange(dropped_, 0);
}

void Offsets::rewind() {
    if (!entries_.empty())
        dropped_ =
            static_cast<std::size_t>(std::ranges::count(entries_, false, &Entry::is_applied));
    next_ = position();
    entries_.clear();
}

bool Offsets::is_mark(std::int64_t offset, const std::string& event_id,
                      const std::optional<Time>& stamp) const {
    if (mark_ && mark_.offset == offset)
        return mark_.event_id == event_id;
    const Time newest = std::max(saved_at_, passed_at_);
    return !stamp || newest == Time{} || *stamp <= newest;
}

bool Offsets::read(std::int64_t offset, Time time, std::string event_id) {
    if (next_ && offset < *next_)
        return false;
    dropped_ = 0;
    entries_.push_back({offset, time, std::move(event_id), false});
    next_ = offset + 1;
    return true;
}

void Offsets::apply(std::int64_t offset) {
    const auto found = std::ranges::lower_bound(entries_, offset, {}, &Entry::offset);
    if (found == entries_.end() || found->offset != offset)
        return;
    found->is_applied = true;
    while (!entries_.empty() && entries_.front().is_applied) {
        Entry& first = entries_.front();
        passed_at_ = std::max(passed_at_, first.time);
        mark_ = {first.offset, std::move(first.event_id)};
        entries_.pop_front();
    }
}

std::optional<std::int64_t> Offsets::position() const {
    return entries_.empty() ? next_ : entries_.front().offset;
}

// pg_inbox saves an offset only if its time is later than the saved one, and times of messages may
// go back.
Position Offsets::position_at(std::int64_t offset, Time newest, const Mark& mark) {
    saved_ = offset;
    saved_at_ = std::max(newest, saved_at_ + std::chrono::microseconds(1));
    return {subscription_, std::to_string(offset), saved_at_, mark.text()};
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
    const Entry& last = *std::prev(entry);
    return {position_at(reached, newest, {last.offset, last.event_id})};
}

std::vector<Position> Offsets::moved_positions() {
    if (time_ && !std::exchange(is_time_saved_, true))
        return {{subscription_, "", *time_, ""}};
    const std::optional<std::int64_t> now = position();
    if (!now || (saved_ && *now <= *saved_))
        return {};
    return {position_at(*now, passed_at_, mark_)};
}

}  // namespace inbox::rabbitmq
