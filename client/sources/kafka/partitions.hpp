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
// Offsets begin again in a topic that was made again. So a position has a mark, the last record
// before it, and reading begins with that record: if another one has its offset, this is another
// topic. begin_again() keeps the records of the old one that are still to be applied: nobody else
// has them.
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
#include "message/mark.hpp"

namespace inbox::kafka {

struct Place {
    std::string topic;
    std::int32_t partition = -1;
    auto operator<=>(const Place&) const = default;
};

struct PlacedOffset {
    Place place;
    std::int64_t offset = -1;
    Mark mark{};
};

// Where the reading of a partition begins.
struct Begin {
    std::int64_t offset = -1;  // -1 if it is not known
    Mark mark{};
    Time saved_at{};  // of the position that is saved
    bool is_saved = false, is_committed = false;

    bool has_mark() const { return mark && mark.offset < offset; }
    // Returns the offset to ask for.
    std::int64_t first() const { return has_mark() ? mark.offset : offset; }
};

class Partitions {
  public:
    // Limit for the records of a partition from its position on. Without it they would grow without
    // bound behind a record that is not settled.
    static constexpr std::size_t max_unsettled = 50'000;

    explicit Partitions(std::string subscription) : subscription_(std::move(subscription)) {}

    enum class Read {
        entered,
        ignored,    // of a place that is not assigned, or read before
        full,       // entered, and the partition must be paused
        doubtful,   // it was read before, although nobody asked for it again
        recreated,  // the topic was made again, or cut back
    };

    void add(const Place& place, const Begin& begin);
    // Drops the records that wait, and forgets the others.
    void remove(const Place& place);
    // Ignored for a place that is not assigned.
    void move(const Place& place, std::int64_t to, Time time);
    enum class Why {
        out_of_range,  // the broker does not have the offset that was asked for
        doubtful,      // the topic may have been made again, or cut back
        recreated,     // it was
    };
    struct Found {
        std::int64_t from = -1;
        std::int64_t skipped = 0;  // records that were deleted before they were read
        bool recreated = false;
    };
    // Returns where reading goes on, if the broker has the offsets from `low` to before `high`. Where it
    // can, it goes on with the last record when checked() was called last: if another one comes, this is
    // another topic. For a topic that was made again, begin_again() must follow.
    Found find_again(const Place& place, Why why, std::int64_t low, std::int64_t high);
    // The topic was made again: reads it from this offset on.
    void begin_again(const Place& place, std::int64_t from);
    // What was known when checked() was called last. A later record comes at `next` or behind it.
    struct Checked {
        Mark last{};  // the last record
        std::int64_t next = -1;
        Time newest{};  // the latest time of all records
    };
    // Returns it for partitions in which records were read since then, or for all.
    std::map<Place, Checked> take_unchecked(bool all = false);
    // All records that were read are of one topic.
    void checked(const Place& place);
    std::vector<Place> places() const;

    Read read(const Place& place, std::int64_t offset, Delivery delivery);
    // The partition has no record behind those that were read, up to this offset. Markers of
    // transactions have offsets, and are not delivered. Returns false if the log was cut back.
    bool ended(const Place& place, std::int64_t offset);
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
    // These return -1 if it is not known.
    std::int64_t position_of(const Place& place) const;
    std::int64_t next_of(const Place& place) const;  // after the last record that was read
    Mark mark_of(const Place& place) const;
    std::size_t size() const { return partitions_.size(); }
    std::size_t waiting() const { return waiting_.size(); }
    std::size_t waiting_bytes() const { return waiting_bytes_; }
    std::size_t outstanding() const;

  private:
    enum class State : unsigned char { waiting, out, settled };
    struct Entry {
        std::int64_t offset;
        Time time;
        std::string event_id;
        State state;
    };
    struct Partition {
        std::uint64_t number = 0;
        std::deque<Entry> entries{};  // from the position on
        std::int64_t next = -1;       // after the last record that was read
        std::size_t out = 0;
        std::int64_t committed = -1;
        std::int64_t saved = -1;       // offset that moved_positions() returned
        Time passed_at{};              // of the newest record before the position
        Time saved_at{};               // of the last position that was returned
        Mark mark{};                   // of the position
        std::int64_t asked = -1;       // reading was asked to begin here
        std::optional<Mark> expected;  // the record to compare, which has not come yet
        Time newest{};                 // of all records
        Checked checked{};
        bool is_unchecked = false;
        bool paused = false;
        bool recalled = false;

        std::int64_t position() const { return entries.empty() ? next : entries.front().offset; }
        Checked now() const;
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
                           Time newest, const Mark& mark) const;
    bool has_waiting(std::uint64_t number) const;

    const std::string subscription_;
    std::map<Place, Partition> partitions_;
    std::map<std::uint64_t, Place> places_;  // by number
    // Numbers of partitions that were made again, with their records that are handed out.
    std::map<std::uint64_t, std::size_t> replaced_;
    std::deque<Waiting> waiting_;
    std::size_t waiting_bytes_ = 0;
};

}  // namespace inbox::kafka
