// The progress of a stream. Its position is the offset of the first message that is not applied.
// The position is saved in the database of the consumer, and reading begins there.
//
// Messages are read in the order of their offsets and applied in any order. It uses neither network
// nor threads.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>

#include "inbox/source.hpp"

namespace inbox::rabbitmq {

class Offsets {
  public:
    explicit Offsets(std::string subscription) : subscription_(std::move(subscription)) {}

    // The position that was saved, and its time.
    void load(std::int64_t position, Time saved_at);
    // Forgets the position until the next message is read, and begins at this time.
    void move(Time to);
    // Forgets what was read and not applied, because it will be read again.
    void rewind();

    // Returns false for a message that was read before.
    bool read(std::int64_t offset, Time time);
    void apply(std::int64_t offset);

    // Returns true if a message with this offset comes next, or was read.
    bool follows(std::int64_t offset) const { return !next_ || offset <= *next_; }
    // Returns std::nullopt if the position is not known.
    std::optional<std::int64_t> position() const;
    // Returns the time to begin at, if there is no position.
    std::optional<Time> time() const { return time_; }
    // Number of messages from the position on.
    std::size_t size() const { return entries_.size(); }

    // As Source::positions() and moved_positions() say.
    std::vector<Position> positions(const std::set<std::int64_t>& applied);
    std::vector<Position> moved_positions();

  private:
    struct Entry {
        std::int64_t offset;
        Time time;
        bool is_applied;
    };
    Position position_at(std::int64_t offset, Time newest);

    const std::string subscription_;
    std::deque<Entry> entries_;          // from the position on
    std::optional<std::int64_t> next_;   // after the last message that was read
    std::optional<std::int64_t> saved_;  // the last position that was returned
    std::optional<Time> time_;
    Time passed_at_{};  // of the newest message before the position
    Time saved_at_{};   // of the last position that was returned
};

}  // namespace inbox::rabbitmq
