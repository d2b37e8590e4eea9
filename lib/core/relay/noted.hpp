// The rows of outbox.transaction that may be needed after a crash, and which of them the cursor has
// passed.
//
// A row may go when the saved cursor covers all its events. They were read from windows that were
// open when the row was noted, so it may go when the last of these is settled, or settled up to the
// highest position of the row. Rows of earlier relays have events of the first window, and so may
// retries that are sent before it is opened.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/transactions.hpp"

namespace outbox {

class NotedTransactions {
  public:
    // Forgets everything, also what has passed: a home that starts over may have an earlier cursor.
    void clear() noexcept {
        lines_.clear();
        passed_.clear();
    }
    // Rows of earlier relays, up to these numbers, are left.
    void recovered(std::span<const std::optional<std::int64_t>> committed);

    void window_opened() noexcept {
        looked_ = true;
        opened_++;
    }
    // A look found that the first window has no event.
    void nothing_found() noexcept;
    void window_settled() noexcept { settled_++; }

    void noted(const Transaction& transaction);
    // Everything up to `position` of the first window that is not settled is settled.
    void advance(std::span<const std::optional<std::int64_t>> committed, std::int64_t position);

    // Rows that may go, by line: [first, last), and of `last` all but the number.
    struct Passed {
        std::int64_t first = 0;
        std::int64_t last = 0;
    };
    std::span<const Passed> passed() const noexcept { return passed_; }
    bool any_passed() const noexcept;
    // They have gone.
    void forgotten() noexcept;

  private:
    struct Row {
        std::int64_t number;
        std::uint64_t window;   // the last one with an event of it
        std::int64_t position;  // the highest one of it
    };

    std::vector<std::deque<Row>> lines_;
    std::vector<Passed> passed_;
    bool looked_ = false;  // for the first window
    std::uint64_t opened_ = 0;
    std::uint64_t settled_ = 0;
};

}  // namespace outbox
