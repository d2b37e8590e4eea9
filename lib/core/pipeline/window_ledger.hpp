// The windows that were opened and are not settled, and up to where the log is settled.
//
// The blocks of a window are a list in order of position. A block whose events are all settled
// leaves the list, and hands the part of the log that it covered to the block before it. So one
// slow event does not keep the blocks of all events that overtook it. The ledger owns no block.
//
// The log also waits for the events of the line: they have left their blocks, and are not yet written
// to outbox.delivery. Each takes little memory, so that a long line of one key does not keep the
// reader from events of other keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "core/pipeline/tracked.hpp"

namespace outbox {

struct Window {
    TrackedBlock* first = nullptr;  // blocks with unsettled events
    TrackedBlock* last = nullptr;
    std::int64_t begin = 0;       // position of the first event
    std::int64_t settled_to = 0;  // highest position below the first unsettled event of a block
    bool any_settled = false;
    bool closed = false;             // the whole window has been read
    std::int64_t last_position = 0;  // if closed: the last position that was read
    std::size_t passed = 0;          // number of events up to settled_to
};

// An event of the line.
struct Parked {
    std::int64_t position = 0;
    std::uint64_t xid = 0;
    Micros occurred_at = 0;
    const std::string* key = nullptr;  // belongs to KeyChains
    const Window* window = nullptr;
    std::uint64_t before = 0;  // number of events that were added before its block
};

class WindowLedger {
  public:
    void open();
    // Adds a filled and tracked block to the open window.
    void add(TrackedBlock& block);
    // `last_position` is the last position that was read, also if it was not added because it is
    // for another destination.
    void close(std::int64_t last_position);
    bool is_open() const noexcept { return !windows_.empty() && !windows_.back().closed; }
    bool empty() const noexcept { return windows_.empty(); }

    // Marks an event of an added block. Call advance() after one or more of these.
    void settle(Tracked& event) noexcept;
    void advance();

    // Puts an event of the last block at the end of the line.
    void park(Tracked& event, const std::string& key);
    const std::deque<Parked>& line() const noexcept { return line_; }
    // Settles the first events of the line. Call advance() then.
    void leave_line(std::size_t count);

    // Returns the number of windows at the front that were settled since the last call, and forgets
    // them.
    std::size_t take_settled() noexcept;
    // The highest position of the windows settled so far.
    std::int64_t highest_settled() const noexcept { return highest_settled_; }
    // Everything up to this position of the front window is settled; std::nullopt if nothing is.
    std::optional<std::int64_t> front_position() const noexcept;
    // Number of events from the first unsettled one of a block on.
    std::size_t span() const noexcept { return span_; }
    // Number of events from the first unsettled one on, also of the line. May be too many by those of
    // a block.
    std::size_t whole_span() const noexcept;
    // Returns nullptr if all events of blocks are settled.
    Tracked* first_unsettled() const noexcept;
    // Returns the first block with unsettled events, or nullptr.
    TrackedBlock* first_block() const noexcept;

  private:
    static void leave(TrackedBlock& block) noexcept;
    bool has_line(const Window& window) const noexcept;

    std::deque<Window> windows_;  // they never move
    std::deque<Parked> line_;     // in order of windows and positions
    std::uint64_t added_ = 0;     // number of events so far
    std::size_t settled_windows_ = 0;
    std::int64_t highest_settled_ = 0;
    std::size_t span_ = 0;
};

}  // namespace outbox
