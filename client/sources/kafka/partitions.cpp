#include "kafka/partitions.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
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
        entries.pop_front();
    }
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

void Partitions::add(const Place& place, std::int64_t begin, Time saved) {
    remove(place);
    Partition& added = partitions_[place];
    added.number = ++last_number;
    added.next = begin;
    added.saved = begin;
    added.saved_at = saved;
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
    const Time saved = partition->saved_at;
    add(place, to, saved);
    Partition& moved = partitions_[place];
    moved.saved = -1;
    moved.passed_at = time;
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

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

bool Partitions::read(const Place& place, std::int64_t offset, Delivery delivery) {
    Partition* const partition = find(place);
    if (partition == nullptr || partition->recalled || offset < partition->next)
        return true;
    partition->entries.push_back({offset, delivery.published_at, State::waiting});
    partition->next = offset + 1;
    partition->has_read = true;
    delivery.handle = text_of({partition->number, offset});
    waiting_bytes_ += delivery.size;
    waiting_.push_back({partition->number, offset, std::move(delivery)});
    if (partition->entries.size() < max_unsettled)
        return true;
    partition->paused = true;
    return false;
}

void Partitions::passed(const Place& place, std::int64_t offset) {
    if (Partition* const partition = find(place);
        partition != nullptr && partition->has_read && partition->entries.empty())
        partition->next = std::max(partition->next, offset);
}

std::vector<Place> Partitions::idle() const {
    std::vector<Place> idle;
    for (const auto& [place, partition] : partitions_)
        if (partition.has_read && partition.entries.empty())
            idle.push_back(place);
    return idle;
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
    }
}

// Goes from the last to the first, so that they are in order at the front.
void Partitions::nack(std::span<const Delivery> deliveries) {
    for (auto delivery = deliveries.rbegin(); delivery != deliveries.rend(); ++delivery) {
        const Handle handle = parse_handle(delivery->handle);
        Partition* const partition = find(handle.number);
        Entry* const entry = partition == nullptr ? nullptr : partition->find(handle.offset);
        if (entry == nullptr || entry->state != State::out)
            continue;
        partition->out--;
        entry->state = State::waiting;
        if (partition->recalled)
            continue;
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
    const auto found = places_.find(parse_handle(delivery.handle).number);
    return found == places_.end() || find(found->second)->recalled;
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
            changed.push_back({place, position});
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
                                   Time newest) const {
    partition.saved_at = std::max(newest, partition.saved_at + std::chrono::microseconds(1));
    return {name_of(place), std::to_string(offset), partition.saved_at};
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
        for (const Entry& entry : partition->entries) {
            reached = entry.offset;
            if (entry.state != State::settled && !offsets.contains(entry.offset))
                break;
            newest = std::max(newest, entry.time);
            reached = partition->next;
        }
        if (reached > partition->position())
            positions.push_back(next_position(places_.at(number), *partition, reached, newest));
    }
    return positions;
}

std::vector<Position> Partitions::moved_positions() {
    std::vector<Position> positions;
    for (auto& [place, partition] : partitions_)
        if (const std::int64_t position = partition.position();
            position >= 0 && position != partition.saved) {
            partition.saved = position;
            positions.push_back(next_position(place, partition, position, partition.passed_at));
        }
    return positions;
}

}  // namespace inbox::kafka
