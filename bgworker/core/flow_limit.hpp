// How fast requests go to a lane that asks for less.
//
// The law is DCTCP's (RFC 8257, section 3.3): after each sample of answers the number of requests in
// flight is multiplied by one less the share of answers that asked for less. A share up to
// `tolerated` is no reason to slow down: answers that are refused at random, however few requests
// there are, would otherwise stop a lane that has room. While all goes well the limit grows by a
// constant factor at most every `growth_pause`; nor is it lowered more often, unless the share is
// `obvious`: by chance alone some samples are above what is tolerated.
//
// One request in flight can be too many for a receiver that is near. So the limit is a fraction, and
// requests are spaced by the usual duration of one over the limit; below one a request goes less
// often than the one before it ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "clock.hpp"

namespace outbox {

class FlowLimit {
  public:
    static constexpr unsigned sample_size = 256;
    static constexpr double tolerated = 1.0 / 12;
    static constexpr double growth = 1.0 + 1.0 / 16;
    // A share that needs no second look.
    static constexpr double obvious = 1.0 / 4;
    static constexpr Micros growth_pause = milliseconds(100);
    static constexpr double least = 0.001;
    // A request that is late may be made up for: timers are coarse.
    static constexpr Micros most_late = milliseconds(3);

    explicit FlowLimit(std::size_t most) noexcept : most_(static_cast<double>(most)), limit_(most_) {}

    // A request of the lane was answered after `took`.
    void answered(Micros now, Micros took, bool throttled) noexcept;
    void sent(Micros now) noexcept;
    // The lane was down and works again: it starts with a part of what is possible.
    void start_again() noexcept;

    // Requests in flight.
    double limit() const noexcept { return limit_; }
    bool is_lowered() const noexcept { return limit_ < most_; }
    std::size_t allowed() const noexcept;
    // No request before.
    Micros earliest() const noexcept { return is_lowered() ? next_at_ : 0; }
    // How long a request takes that is not throttled; 0: not known.
    Micros usual_duration() const noexcept { return static_cast<Micros>(duration_); }

  private:
    void take_sample(Micros now) noexcept;

    double most_;
    double limit_;
    double duration_ = 0;  // moving average
    Micros next_at_ = 0;
    Micros grown_at_ = 0;
    unsigned answers_ = 0;  // of this sample
    unsigned throttled_ = 0;
};

}  // namespace outbox
