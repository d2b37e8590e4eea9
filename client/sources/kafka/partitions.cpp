#include "kafka/partitions.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <limits>
#include <utility>

namespace inbox::kafka {

static std::atomic<std::uint64_t> last_number = 0;

// -------------------------------------------------------------------------------------------------
// Records
// -------------------------------------------------------------------------------------------------

Partitions::Entry* Partitions::Partition::find(std::int64_t offset) {
    const auto found = std::ranges::lower_bound(entries, offset, {}, &Entry::offset);
    return found != entries.end() && found->offset == offset ? &*found : nullptr;
}

void Partitions::Partition::settle(Entry& entry) {
    out -= entry.state == State::out;
    entry.state = State::settled;
    while (!entries.empty() && entries.front().state == State::settled) {
        passed_at = std::max(passed_at, entries.front().time);
        mark = {entries.front().offset, std::move(entries.front().event_id)};
        entries.pop_front();
    }
}

Partitions::Checked Partitions::Partition::now() const {
    const Mark last = entries.empty() ? mark : Mark{entries.back().offset, entries.back().event_id};
    return {last, next, newest};
}

std::string Partitions::text_of(Handle handle) {
    return std::to_string(handle.number) + '/' + std::to_string(handle.offset);
}

Partitions::Handle Partitions::parse_handle(const std::string& text) {
    Handle handle{0, -1};
    const char* const end = text.data() + text.size();
    const auto number = std::from_chars(text.data(), end, handle.number);
    if (number.ptr != end)
        std::from_chars(number.ptr + 1, end, handle.offset);
    return handle;
}

// -------------------------------------------------------------------------------------------------
// Places
// -------------------------------------------------------------------------------------------------

Partitions::Partition* Partitions::find(const Place& place) {
    const auto found = partitions_.find(place);
    return found == partitions_.end() ? nullptr : &found->second;
}

const Partitions::Partition* Partitions::find(const Place& place) const {
    const auto found = partitions_.find(place);
    return found == partitions_.end() ? nullptr : &found->second;
}

Partitions::Partition* Partitions::find(std::uint64_t number) {
    const auto found = places_.find(number);
    return found == places_.end() ? nullptr : find(found->second);
}

void Partitions::add(const Place& place, const Begin& begin) {
    remove(place);
    Partition& added = partitions_[place];
    added.number = ++last_number;
    added.next = begin.offset;
    added.asked = begin.first();
    if (begin.has_mark()) {
        added.mark = begin.mark;
        added.expected = begin.mark;
        added.checked = {begin.mark, begin.offset, begin.saved_at};
    }
    added.committed = begin.is_committed ? begin.offset : -1;
    added.saved = begin.is_saved ? begin.offset : -1;
    added.saved_at = begin.saved_at;
    places_.emplace(added.number, place);
}

void Partitions::remove(const Place& place) {
    const auto found = partitions_.find(place);
    if (found == partitions_.end())
        return;
    drop_waiting(found->second.number);
    places_.erase(found->second.number);
    partitions_.erase(found);
}

void Partitions::move(const Place& place, std::int64_t to, Time time) {
    const Partition* const partition = find(place);
    if (partition == nullptr)
        return;
    add(place, {.offset = to, .saved_at = partition->saved_at});
    partitions_[place].passed_at = time;
}

void Partitions::begin_again(const Place& place, std::int64_t from) {
    Partition* const partition = find(place);
    if (partition == nullptr)
        return;
    const Partition old = std::move(*partition);
    places_.erase(old.number);
    partitions_.erase(place);
    if (old.out > 0 || has_waiting(old.number))
        replaced_.emplace(old.number, old.out);
    add(place, {.offset = from, .saved_at = old.saved_at});
    partitions_[place].recalled = old.recalled;
}

// The log may have grown up to the position since its offset was out of range, so its records tell.
Partitions::Found Partitions::find_again(const Place& place, Why why, std::int64_t low,
                                         std::int64_t high) {
    Partition* const partition = find(place);
    if (partition == nullptr || partition->next < 0)
        return {.from = low};
    const std::int64_t next = partition->next;
    if (why == Why::recreated || next > high)
        return {.from = low, .recreated = true};
    const Mark& last = partition->checked.last;
    if (next >= low && last && last.offset >= low) {
        partition->expected = last;
        return {.from = partition->asked = last.offset};
    }
    if (next >= low && !last && why == Why::out_of_range)
        return {.from = low, .recreated = true};
    partition->expected.reset();
    partition->next = partition->asked = std::max(next, low);
    return {.from = partition->next, .skipped = partition->next - next};
}

std::map<Place, Partitions::Checked> Partitions::take_unchecked(bool all) {
    std::map<Place, Checked> unchecked;
    for (auto& [place, partition] : partitions_)
        if ((std::exchange(partition.is_unchecked, false) || all) &&
            partition.checked.newest != Time{})
            unchecked.emplace(place, partition.checked);
    return unchecked;
}

void Partitions::checked(const Place& place) {
    if (Partition* const partition = find(place))
        partition->checked = partition->now();
}

bool Partitions::has_waiting(std::uint64_t number) const {
    return std::ranges::find(waiting_, number, &Waiting::number) != waiting_.end();
}

void Partitions::drop_waiting(std::uint64_t number) {
    std::deque<Waiting> kept;
    for (Waiting& each : waiting_) {
        if (each.number != number)
            kept.push_back(std::move(each));
        else
            waiting_bytes_ -= each.delivery.size;
    }
    waiting_ = std::move(kept);
}

std::vector<Place> Partitions::places() const {
    std::vector<Place> all;
    for (const auto& [place, partition] : partitions_)
        all.push_back(place);
    return all;
}

std::string Partitions::name_of(const Place& place) const {
    return subscription_ + '/' + place.topic + '/' + std::to_string(place.partition);
}

std::int64_t Partitions::position_of(const Place& place) const {
    const Partition* const partition = find(place);
    return partition == nullptr ? -1 : partition->position();
}

std::int64_t Partitions::next_of(const Place& place) const {
    const Partition* const partition = find(place);
    return partition == nullptr ? -1 : partition->next;
}

Mark Partitions::mark_of(const Place& place) const {
    const Partition* const partition = find(place);
    return partition == nullptr ? Mark{} : partition->mark;
}

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

Partitions::Read Partitions::read(const Place& place, std::int64_t offset, Delivery delivery) {
    Partition* const partition = find(place);
    if (partition == nullptr || partition->recalled)
        return Read::ignored;
    if (offset < partition->asked)
        return Read::doubtful;
    if (const auto expected = std::exchange(partition->expected, {});
        expected && expected->offset == offset && expected->event_id != delivery.event.id)
        return Read::recreated;
    constexpr auto beyond_all = std::numeric_limits<std::int64_t>::max();  // nothing is behind it
    if (offset < partition->next || offset == beyond_all)
        return Read::ignored;
    partition->entries.push_back(
        {offset, delivery.published_at, delivery.event.id, State::waiting});
    partition->next = partition->asked = offset + 1;
    partition->newest = std::max(partition->newest, delivery.published_at);
    partition->is_unchecked = true;
    if (partition->checked.newest == Time{})
        partition->checked = partition->now();
    delivery.handle = text_of({partition->number, offset});
    waiting_bytes_ += delivery.size;
    waiting_.push_back({partition->number, offset, std::move(delivery)});
    if (partition->entries.size() < max_unsettled)
        return Read::entered;
    partition->paused = true;
    return Read::full;
}

bool Partitions::ended(const Place& place, std::int64_t offset) {
    Partition* const partition = find(place);
    if (partition == nullptr || partition->recalled)
        return true;
    if (offset < partition->next)
        return false;
    partition->expected.reset();
    partition->next = partition->asked = offset;
    return true;
}

std::vector<Place> Partitions::take_resumed() {
    std::vector<Place> resumed;
    for (auto& [place, partition] : partitions_)
        if (partition.paused && partition.entries.size() < max_unsettled / 2) {
            partition.paused = false;
            resumed.push_back(place);
        }
    return resumed;
}

std::vector<Delivery> Partitions::take(std::size_t most) {
    std::vector<Delivery> taken;
    while (!waiting_.empty() && taken.size() < most) {
        Waiting& first = waiting_.front();
        if (Partition* const partition = find(first.number)) {
            if (Entry* const entry = partition->find(first.offset))
                entry->state = State::out;
            partition->out++;
        } else if (const auto replaced = replaced_.find(first.number);
                   replaced != replaced_.end()) {
            replaced->second++;
        }
        waiting_bytes_ -= first.delivery.size;
        taken.push_back(std::move(first.delivery));
        waiting_.pop_front();
    }
    return taken;
}

std::size_t Partitions::outstanding() const {
    std::size_t sum = 0;
    for (const auto& [place, partition] : partitions_)
        sum += partition.out;
    for (const auto& [number, out] : replaced_)
        sum += out;
    return sum;
}

// -------------------------------------------------------------------------------------------------
// Settling
// -------------------------------------------------------------------------------------------------

void Partitions::ack(std::span<const Delivery> deliveries) {
    for (const Delivery& delivery : deliveries) {
        const Handle handle = parse_handle(delivery.handle);
        Partition* const partition = find(handle.number);
        Entry* const entry = partition == nullptr ? nullptr : partition->find(handle.offset);
        if (entry != nullptr && entry->state == State::out)
            partition->settle(*entry);
        if (const auto replaced = replaced_.find(handle.number);
            replaced != replaced_.end() && --replaced->second == 0 && !has_waiting(handle.number))
            replaced_.erase(replaced);
    }
}

// Goes from the last to the first, so that they are in order at the front.
void Partitions::nack(std::span<const Delivery> deliveries) {
    for (auto delivery = deliveries.rbegin(); delivery != deliveries.rend(); ++delivery) {
        const Handle handle = parse_handle(delivery->handle);
        if (const auto replaced = replaced_.find(handle.number); replaced != replaced_.end()) {
            replaced->second--;
        } else {
            Partition* const partition = find(handle.number);
            Entry* const entry = partition == nullptr ? nullptr : partition->find(handle.offset);
            if (entry == nullptr || entry->state != State::out)
                continue;
            partition->out--;
            entry->state = State::waiting;
            if (partition->recalled)
                continue;
        }
        waiting_bytes_ += delivery->size;
        waiting_.push_front({handle.number, handle.offset, *delivery});
    }
}

void Partitions::recall(const Place& place) {
    if (Partition* const partition = find(place)) {
        partition->recalled = true;
        drop_waiting(partition->number);
    }
}

bool Partitions::is_recalled(const Delivery& delivery) const {
    const std::uint64_t number = parse_handle(delivery.handle).number;
    const auto found = places_.find(number);
    return found == places_.end() ? !replaced_.contains(number) : find(found->second)->recalled;
}

bool Partitions::has_begun(const Place& place) const {
    const Partition* const partition = find(place);
    return partition != nullptr && partition->out > 0;
}

// -------------------------------------------------------------------------------------------------
// Positions
// -------------------------------------------------------------------------------------------------

std::vector<PlacedOffset> Partitions::take_uncommitted() {
    std::vector<PlacedOffset> changed;
    for (auto& [place, partition] : partitions_)
        if (const std::int64_t position = partition.position();
            position >= 0 && position != partition.committed) {
            partition.committed = position;
            changed.push_back({place, position, partition.mark});
        }
    return changed;
}

void Partitions::commit_failed(const Place& place) {
    if (Partition* const partition = find(place))
        partition->committed = -1;
}

// pg_inbox saves an offset only if its time is later than the saved one, and times of records may
// go back.
Position Partitions::next_position(const Place& place, Partition& partition, std::int64_t offset,
                                   Time newest, const Mark& mark) const {
    partition.saved_at = std::max(newest, partition.saved_at + std::chrono::microseconds(1));
    return {name_of(place), std::to_string(offset), partition.saved_at, mark.text()};
}

std::vector<Position> Partitions::positions(std::span<const Delivery* const> deliveries) {
    std::map<std::uint64_t, std::set<std::int64_t>> applied;
    for (const Delivery* const delivery : deliveries) {
        const Handle handle = parse_handle(delivery->handle);
        applied[handle.number].insert(handle.offset);
    }
    std::vector<Position> positions;
    for (const auto& [number, offsets] : applied) {
        Partition* const partition = find(number);
        if (partition == nullptr)
            continue;
        std::int64_t reached = partition->next;
        Time newest = partition->passed_at;
        const Entry* last = nullptr;
        for (const Entry& entry : partition->entries) {
            reached = entry.offset;
            if (entry.state != State::settled && !offsets.contains(entry.offset))
                break;
            newest = std::max(newest, entry.time);
            last = &entry;
            reached = partition->next;
        }
        if (reached > partition->position())
            positions.push_back(next_position(
                places_.at(number), *partition, reached, newest,
                last == nullptr ? partition->mark : Mark{last->offset, last->event_id}));
    }
    return positions;
}

std::vector<Position> Partitions::moved_positions() {
    std::vector<Position> positions;
    for (auto& [place, partition] : partitions_)
        if (const std::int64_t position = partition.position();
            position >= 0 && position != partition.saved) {
            partition.saved = position;
            positions.push_back(
                next_position(place, partition, position, partition.passed_at, partition.mark));
        }
    return positions;
}

}  // namespace inbox::kafka
