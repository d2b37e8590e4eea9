// How many requests a second go to a lane that asks for less.
//
// While a lane takes what it gets there is no limit. When more than a tolerated share of a sample of
// answers asks for less, the limit is the rate at which they came, multiplied by one less that share:
// what it took. While that share stays below, the limit grows by a constant factor with each sample;
// above, it is multiplied again, but not for answers to what was sent before. That is the law of DCTCP (RFC 8257, section 3.3), for a rate instead
// of a window: how long requests take says little of how many a receiver takes, and a limit below one
// in flight would be at the mercy of it. The limit goes when it no longer limits.
//
// A share is tolerated because answers that are refused at random would otherwise stop a lane that
// has room. Where of half as many requests as large a share is refused, it has nothing to do with
// their rate, and that share is tolerated, up to one half, until it falls.
#pragma once

#include <cstdint>

#include "core/clock.hpp"

namespace outbox {

class FlowLimit {
  public:
    static constexpr double tolerated = 1.0 / 12;
    static constexpr double most_tolerated = 1.0 / 2;
    static constexpr double growth = 1.0 + 1.0 / 20;
    // After so many samples in a row in which nothing asked for less: there may be far more room.
    static constexpr unsigned calm_samples = 4;
    static constexpr double calm_growth = 1.0 + 1.0 / 4;
    static constexpr double least = 1.0;  // a second
    // No limit is needed that is so many times what goes.
    static constexpr double ample = 4.0;
    // A sample: so many answers, or with a limit those of so long.
    static constexpr unsigned sample_size = 1024;
    static constexpr Micros sample_time = milliseconds(100);
    // A request that is late may be made up for: timers are coarse.
    static constexpr Micros most_late = milliseconds(10);

    // A request of the lane was answered after `took`.
    void answered(Micros now, Micros took, bool throttled) noexcept;
    void sent(Micros now) noexcept;
    // The lane was down and works again: it starts with as many as `requests` side by side are.
    void start_again(Micros now, double requests) noexcept;

    // Requests a second; 0: there is no limit.
    double limit() const noexcept { return limit_; }
    bool is_lowered() const noexcept { return limit_ > 0; }
    // It was lowered because the lane asked for less, and not to start with.
    bool is_throttled() const noexcept { return is_lowered() && !starts_; }
    // No request before.
    Micros earliest() const noexcept { return is_lowered() ? next_at_ : 0; }
    // How long a request takes that is not throttled; 0: not known.
    Micros usual_duration() const noexcept { return static_cast<Micros>(duration_); }

  private:
    bool is_sample(Micros now) const noexcept;
    void take_sample(Micros now) noexcept;

    bool is_in_vain(double share) const noexcept;
    void lower(Micros now, double share, double rate) noexcept;

    double limit_ = 0;
    double tolerated_ = tolerated;
    double rate_before_ = 0;  // the last time it was lowered to half; 0: all is well since
    double share_before_ = 0;
    double duration_ = 0;  // moving average
    Micros next_at_ = 0;
    Micros lowered_at_ = 0;
    unsigned calm_ = 0;  // samples
    bool starts_ = false;
    // Of this sample.
    Micros began_at_ = 0;
    unsigned answers_ = 0;
    unsigned throttled_ = 0;
    double recent_ = 0;  // share that was throttled, moving average over samples
};

}  // namespace outbox
