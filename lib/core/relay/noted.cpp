#include "core/relay/noted.hpp"

#include <algorithm>
#include <utility>

namespace outbox {

static constexpr std::int64_t end_of_window = std::numeric_limits<std::int64_t>::max();

void NotedTransactions::recovered(std::span<const std::optional<std::int64_t>> committed) {
    lines_.assign(committed.size(), {});
    passed_.assign(committed.size(), {});
    looked_ = false;
    opened_ = settled_ = 0;
    for (std::size_t line = 0; line < committed.size(); line++)
        if (committed[line])
            lines_[line].push_back({*committed[line], 1, end_of_window});
}

void NotedTransactions::nothing_found() noexcept {
    if (std::exchange(looked_, true))
        return;
    for (std::deque<Row>& rows : lines_)
        for (Row& row : rows)
            row.window = 0;
}

void NotedTransactions::noted(const Transaction& transaction) {
    std::deque<Row>& rows = lines_.at(transaction.line);
    if (!rows.empty() && rows.back().number == transaction.number)  // it was rolled back
        rows.pop_back();
    std::int64_t highest = 0;
    for (const Batch* batch : transaction.batches)
        for (const Event* event : batch->events)
            highest = std::max(highest, event->position);
    rows.push_back(looked_ ? Row{transaction.number, opened_, highest}
                           : Row{transaction.number, 1, end_of_window});
}

void NotedTransactions::advance(std::span<const std::optional<std::int64_t>> committed,
                                std::int64_t position) {
    for (std::size_t line = 0; line < lines_.size(); line++) {
        std::deque<Row>& rows = lines_[line];
        while (!rows.empty() && rows.front().number <= committed[line].value_or(0) &&
               (rows.front().window <= settled_ ||
                (rows.front().window == settled_ + 1 && rows.front().position <= position))) {
            passed_[line].last = rows.front().number;
            rows.pop_front();
        }
    }
}

bool NotedTransactions::any_passed() const noexcept {
    return std::any_of(passed_.begin(), passed_.end(),
                       [](const Passed& passed) { return passed.last > passed.first; });
}

void NotedTransactions::forgotten() noexcept {
    for (Passed& passed : passed_)
        passed.first = passed.last;
}

}  // namespace outbox
