#include "core/relay/condition_log.hpp"

#include <algorithm>
#include <utility>

namespace outbox {

// Two answers are of the same kind if they differ only in numbers after the first few characters,
// which may be a status. Otherwise each new request id would be a change.
std::string ConditionLog::gist_of(std::string_view reason) {
    static constexpr std::size_t status_ends = 8, long_enough = 64;
    std::string gist;
    for (std::size_t i = 0; i < std::min(reason.size(), long_enough); i++)
        if (i < status_ends || reason[i] < '0' || reason[i] > '9')
            gist += reason[i];
    return gist;
}

bool ConditionLog::observe(Micros now, Condition::Kind kind, std::string_view reason) {
    Seen seen{kind, kind == Condition::Kind::works ? std::string() : gist_of(reason)};
    if (seen != current_) {
        current_ = std::move(seen);
        since_ = now;
        changes_++;
    }
    if (current_ == shown_ || now < deadline())
        return false;
    shown_ = current_;
    line_at_ = now;
    any_line_ = true;
    changes_shown_ = std::exchange(changes_, 0);
    return true;
}

Micros ConditionLog::deadline() const noexcept {
    if (current_ == shown_)
        return never;
    return std::max(since_ + settles_after, any_line_ ? line_at_ + pause : 0);
}

bool LineBudget::take(Micros now) noexcept {
    for (; left_ < at_once && now - refilled_at_ >= pause; left_++)
        refilled_at_ += pause;
    if (left_ == 0) {
        left_out_++;
        return false;
    }
    if (left_-- == at_once)
        refilled_at_ = now;
    left_out_shown_ = std::exchange(left_out_, 0);
    return true;
}

}  // namespace outbox
