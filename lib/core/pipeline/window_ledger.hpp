// The windows that were opened and are not settled, and up to where the log is settled.
//
// A window's blocks are a list in order of position. A block whose events are all settled leaves
// the list, and hands the part of the log it stood for to the block before it: so one slow event
// does not keep the blocks of all that overtook it. The ledger owns no block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "core/pipeline/tracked.hpp"

namespace outbox {

struct Window {
    TrackedBlock* first = nullptr;  // the blocks that hold unsettled events
    TrackedBlock* last = nullptr;
    std::int64_t settled_to = 0;  // highest position below the first unsettled event
    bool any_settled = false;
    bool closed = false;             // everything of it has been read,
    std::int64_t last_position = 0;  // up to here
    std::size_t passed = 0;          // events up to settled_to
};

class WindowLedger {
  public:
    void open();
    // To the window that is open. The block has been filled and is tracked.
    void add(TrackedBlock& block);
    // `last_position`: what was read and not added, being for others, ends there.
    void close(std::int64_t last_position);
    bool is_open() const noexcept { return !windows_.empty() && !windows_.back().closed; }
    bool empty() const noexcept { return windows_.empty(); }

    // An event of a block that was added. After some of these, advance().
    void settle(Tracked& event) noexcept;
    void advance();

    // How many windows at the front were settled since the last call; they are forgotten.
    std::size_t take_settled() noexcept;
    // The highest position of the windows settled so far.
    std::int64_t highest_settled() const noexcept { return highest_settled_; }
    // Of the front window: everything up to this position is settled. Nothing when no event of it
    // was.
    std::optional<std::int64_t> front_position() const noexcept;
    // Events from the first unsettled one on.
    std::size_t span() const noexcept { return span_; }
    // nullptr: there is none.
    Tracked* first_unsettled() const noexcept;
    // A block with unsettled events, the first one; nullptr: there is none.
    TrackedBlock* first_block() const noexcept;

  private:
    static void leave(TrackedBlock& block) noexcept;

    std::deque<Window> windows_;
    std::size_t settled_windows_ = 0;
    std::int64_t highest_settled_ = 0;
    std::size_t span_ = 0;
};

}  // namespace outbox
