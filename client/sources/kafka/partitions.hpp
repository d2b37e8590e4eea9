// The partitions that a process has, and the state of their records.
//
// Records of a partition are read in the order of their offsets and settled in any order. The
// position of a partition is the offset of the first record that is not settled, and may be
// committed. A record that is given back waits here for the next take(), before all that were read
// later.
//
// A partition gets a new number each time it is assigned, and when its position is moved. The
// number is unique in this process. Handles of records contain it, so settling a record too late
// changes nothing.
//
// Not thread-safe. Times are those of records; nothing here reads a clock.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "inbox/source.hpp"

namespace inbox::kafka {

struct Place {
    std::string topic;
    std::int32_t partition = -1;
    auto operator<=>(const Place&) const = default;
};

struct PlacedOffset {
    Place place;
    std::int64_t offset = -1;
};

class Partitions {
  public:
    // Limit for the records of a partition from its position on. Without it they would grow without
    // bound behind a record that is not settled.
    static constexpr std::size_t max_unsettled = 50'000;

    explicit Partitions(std::string subscription) : subscription_(std::move(subscription)) {}

    // `begin` is the offset to be read first, -1 if it is not known. `saved` is the time of the
    // position that is saved.
    void add(const Place& place, std::int64_t begin, Time saved = {});
    // Drops the records that wait, and forgets the others.
    void remove(const Place& place);
    // Ignored for a place that is not assigned.
    void move(const Place& place, std::int64_t to, Time time);
    std::vector<Place> places() const;

    // Ignores a record of a place that is not assigned, and one that was read before. Returns false
    // if the partition must be paused.
    bool read(const Place& place, std::int64_t offset, Delivery delivery);
    // There is no record before this offset.
    void passed(const Place& place, std::int64_t offset);
    // Returns places for passed(): at least one record was read, and all were settled.
    std::vector<Place> idle() const;
    // Returns paused places that may go on, and regards them as resumed.
    std::vector<Place> take_resumed();

    std::vector<Delivery> take(std::size_t most);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);

    // Drops the records that wait, and those that are given back later.
    void recall(const Place& place);
    // Also true for records of places that are no longer assigned.
    bool is_recalled(const Delivery& delivery) const;
    // Returns true if a record is handed out.
    bool has_begun(const Place& place) const;

    // Returns positions that have changed since they were last taken, or whose commit has failed.
    std::vector<PlacedOffset> take_uncommitted();
    void commit_failed(const Place& place);
    // For Source::positions() and moved_positions(). A transaction that applies deliveries saves
    // the position that is reached when it commits.
    std::vector<Position> positions(std::span<const Delivery* const> deliveries);
    std::vector<Position> moved_positions();

    std::string name_of(const Place& place) const;
    // Returns -1 if it is not known.
    std::int64_t position_of(const Place& place) const;
    std::size_t size() const { return partitions_.size(); }
    std::size_t waiting() const { return waiting_.size(); }
    std::size_t waiting_bytes() const { return waiting_bytes_; }
    std::size_t outstanding() const;

  private:
    enum class State : unsigned char { waiting, out, settled };
    struct Entry {
        std::int64_t offset;
        Time time;
        State state;
    };
    struct Partition {
        std::uint64_t number = 0;
        std::deque<Entry> entries{};  // from the position on
        std::int64_t next = -1;       // after the last record that was read
        std::size_t out = 0;
        std::int64_t committed = -1;
        std::int64_t saved = -1;  // offset that moved_positions() returned
        Time passed_at{};         // of the newest record before the position
        Time saved_at{};          // of the last position that was returned
        bool has_read = false;
        bool paused = false;
        bool recalled = false;

        std::int64_t position() const { return entries.empty() ? next : entries.front().offset; }
        Entry* find(std::int64_t offset);
        void settle(Entry& entry);
    };
    struct Handle {
        std::uint64_t number;
        std::int64_t offset;
    };
    struct Waiting {
        std::uint64_t number;
        std::int64_t offset;
        Delivery delivery;
    };

    static std::string text_of(Handle handle);
    static Handle parse_handle(const std::string& text);
    Partition* find(std::uint64_t number);
    Partition* find(const Place& place);
    const Partition* find(const Place& place) const;
    void drop_waiting(std::uint64_t number);
    Position next_position(const Place& place, Partition& partition, std::int64_t offset,
                           Time newest) const;

    const std::string subscription_;
    std::map<Place, Partition> partitions_;
    std::map<std::uint64_t, Place> places_;  // by number
    std::deque<Waiting> waiting_;
    std::size_t waiting_bytes_ = 0;
};

}  // namespace inbox::kafka
