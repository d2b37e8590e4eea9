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
#include "message/mark.hpp"

namespace inbox::rabbitmq {

class Offsets {
  public:
    explicit Offsets(std::string subscription) : subscription_(std::move(subscription)) {}

    // The position that was saved, its time, and its mark.
    void load(std::int64_t position, Time saved_at, Mark mark = {});
    // Forgets the position until the next message is read, and begins at this time.
    void move(Time to);
    // The same, with this time as the position that is saved. A time to come was written before the
    // clock was set back, and all messages until then would be skipped, so it begins now.
    void load(Time begin, Time now);
    // The same, and the time is not saved yet: nothing was read before it.
    void begin(Time now);
    // Forgets all positions, because the stream was made again. Returns how many messages were read
    // of the old one and not applied.
    std::size_t begin_again();
    // Forgets what was read and not applied, because it will be read again.
    void rewind();

    // Returns true if the message before the position is the one that was there, as far as can be
    // told. `stamp` is its own time, if it has one.
    bool is_mark(std::int64_t offset, const std::string& event_id,
                 const std::optional<Time>& stamp) const;
    // Returns false for a message that was read before.
    bool read(std::int64_t offset, Time time, std::string event_id = {});
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
        std::string event_id;
        bool is_applied;
    };
    Position position_at(std::int64_t offset, Time newest, const Mark& mark);

    const std::string subscription_;
    std::deque<Entry> entries_;          // from the position on
    std::optional<std::int64_t> next_;   // after the last message that was read
    std::optional<std::int64_t> saved_;  // the last position that was returned
    std::optional<Time> time_;
    bool is_time_saved_ = true;
    std::size_t dropped_ = 0;  // messages that rewind() has forgotten
    Mark mark_;                // of the position
    Time passed_at_{};         // of the newest message before the position
    Time saved_at_{};          // of the last position that was returned
};

}  // namespace inbox::rabbitmq
