#include "core/pipeline/flow_limit.hpp"

#include <algorithm>

namespace outbox {

static constexpr double weight = 1.0 / 32;  // of one request in a moving average
static constexpr double most = 3.0 / 4;
// With fewer answers than this a share means little.
static constexpr unsigned enough_answers = 8;

void FlowLimit::answered(Micros now, Micros took, bool throttled) noexcept {
    const auto seen = static_cast<double>(std::max<Micros>(took, 1));
    // A refusal can be faster than real work, so it counts only while nothing else is known.
    if (duration_ == 0)
        duration_ = seen;
    else if (!throttled)
        duration_ += (seen - duration_) * weight;
    if (is_lowered() && now - took < lowered_at_)
        return;
    if (answers_ == 0 && !is_lowered())
        began_at_ = now;
    answers_++;
    throttled_ += throttled;
    recent_ += (throttled - recent_) * weight;
    if (is_sample(now))
        take_sample(now);
}

// A sample ends early when most answers ask for less. Without a limit it ends after a second: older
// answers say nothing about the current rate.
bool FlowLimit::is_sample(Micros now) const noexcept {
    if (recent_ > most)
        return true;
    if (is_lowered())
        return now - began_at_ >= sample_time && (throttled_ == 0 || answers_ >= enough_answers);
    return answers_ >= sample_size || (answers_ >= enough_answers && now - began_at_ >= seconds(1));
}

void FlowLimit::take_sample(Micros now) noexcept {
    const double share = recent_ > most ? recent_ : static_cast<double>(throttled_) / answers_;
    const double rate =
        answers_ * 1e6 / static_cast<double>(std::max<Micros>(now - began_at_, 1000));
    calm_ = throttled_ == 0 ? calm_ + 1 : 0;
    answers_ = throttled_ = 0;
    recent_ = std::min(recent_, 0.5);
    began_at_ = now;
    if (share < tolerated_ / 2)
        tolerated_ = tolerated;
    if (share > tolerated_) {
        lower(now, share, rate);
        return;
    }
    rate_before_ = 0;
    if (!is_lowered())
        return;
    limit_ *= calm_ > calm_samples ? calm_growth : growth;
    if (limit_ > ample * rate)
        limit_ = 0;
}

void FlowLimit::lower(Micros now, double share, double rate) noexcept {
    lowered_at_ = now;
    starts_ = false;
    if (!is_lowered())
        limit_ = rate;
    if (is_in_vain(share)) {
        tolerated_ = std::min(max_tolerated, share * 1.25);
        limit_ = rate_before_ = 0;
        return;
    }
    if (rate_before_ == 0 || limit_ <= rate_before_ / 2) {
        rate_before_ = limit_;
        share_before_ = share;
    }
    limit_ = std::max(least, limit_ * std::max(0.5, 1 - share));
}

// Lowering the rate is in vain if the share of throttled answers does not fall with it. If a
// receiver sheds load, the share falls with the rate.
bool FlowLimit::is_in_vain(double share) const noexcept {
    return rate_before_ > 0 && limit_ <= rate_before_ / 2 && share < max_tolerated &&
           share > share_before_ * 4 / 5;
}

void FlowLimit::sent(Micros now) noexcept {
    if (is_lowered())
        next_at_ = std::max(next_at_, now - most_late) + static_cast<Micros>(1e6 / limit_);
}

void FlowLimit::start_again(Micros now, double requests) noexcept {
    const double rate = requests * 1e6 / std::max(duration_, 1.0);
    starts_ = starts_ || !is_lowered();
    if (!is_lowered() || limit_ > rate)
        limit_ = rate;
    answers_ = throttled_ = 0;
    recent_ = 0;
    began_at_ = now;
}

}  // namespace outbox
