#include "flow_limit.hpp"

#include <algorithm>
#include <cmath>

namespace outbox {

static constexpr double weight = 1.0 / 32;  // of one request in the moving average
// A sample ends early when most of so many answers, at least, ask for less.
static constexpr unsigned enough_throttled = 8;

void FlowLimit::answered(Micros now, Micros took, bool throttled) noexcept {
    const auto seen = static_cast<double>(std::max<Micros>(took, 1));
    // Refusals can be faster than work; they count only where nothing else is known.
    if (duration_ == 0)
        duration_ = seen;
    else if (!throttled)
        duration_ += (seen - duration_) * weight;
    answers_++;
    throttled_ += throttled;
    const bool mostly = throttled_ >= enough_throttled && throttled_ * 2 > answers_;
    const bool slow = answers_ >= enough_throttled && now - grown_at_ >= seconds(1) &&
                      throttled_ * 12 <= answers_;
    if (answers_ >= sample_size || mostly || slow)
        take_sample(now);
}

void FlowLimit::take_sample(Micros now) noexcept {
    const double share = static_cast<double>(throttled_) / answers_;
    answers_ = throttled_ = 0;
    if (share > tolerated && (share > obvious || now - grown_at_ >= growth_pause)) {
        limit_ = std::max(least, limit_ * std::max(0.5, 1 - share));
        grown_at_ = now;
    } else if (share <= tolerated && is_lowered() && now - grown_at_ >= growth_pause) {
        limit_ = std::min(most_, limit_ * growth);
        grown_at_ = now;
    }
}

void FlowLimit::sent(Micros now) noexcept {
    if (!is_lowered())
        return;
    const auto pause = static_cast<Micros>(std::min(duration_ / limit_, 60e6));
    next_at_ = std::max(next_at_, now - most_late) + pause;
}

void FlowLimit::start_again() noexcept {
    limit_ = std::min(limit_, std::max(1.0, most_ / 4));
    answers_ = throttled_ = 0;
}

std::size_t FlowLimit::allowed() const noexcept {
    return static_cast<std::size_t>(std::max(1.0, std::ceil(limit_)));
}

}  // namespace outbox
