// Limits the requests per second to a lane that asks for fewer.
//
// There is no limit while a lane accepts all requests. When more than a tolerated share of the
// answers in a sample is throttled, the limit becomes the rate of these answers, multiplied by one
// minus that share: the rate that the lane accepted. While the share stays below the tolerated one,
// the limit grows by a constant factor with each sample. When it is above, the limit is multiplied
// again; answers to requests sent before the last change do not count. The limit ends when requests
// stay far below it.
//
// This is the law of DCTCP (RFC 8257, section 3.3), for a rate instead of a window. A window would
// need the duration of requests, which says little about how many a receiver accepts, and it cannot
// be less than one request in flight.
//
// A share is tolerated because a receiver that refuses at random would otherwise stop a lane that
// has room. If at half the rate the share is still as large, it does not depend on the rate. Then
// that share is tolerated, up to one half, until it falls.
#pragma once

#include <cstdint>

#include "core/clock.hpp"

namespace outbox {

class FlowLimit {
  public:
    static constexpr double tolerated = 1.0 / 12;
    static constexpr double max_tolerated = 1.0 / 2;
    static constexpr double growth = 1.0 + 1.0 / 20;
    // After this many samples in a row without a throttled answer the limit grows faster: there may
    // be far more room.
    static constexpr unsigned calm_samples = 4;
    static constexpr double calm_growth = 1.0 + 1.0 / 4;
    static constexpr double least = 1.0;  // requests per second
    // The limit ends when it is this many times the current rate.
    static constexpr double ample = 4.0;
    // A sample has this many answers. While there is a limit, it has the answers of this time.
    static constexpr unsigned sample_size = 1024;
    static constexpr Micros sample_time = milliseconds(100);
    // Timers are coarse: a request that is late by at most this much is made up for.
    static constexpr Micros most_late = milliseconds(10);

    // A request of the lane was answered after `took`.
    void answered(Micros now, Micros took, bool throttled) noexcept;
    void sent(Micros now) noexcept;
    // The lane was down and works again. It starts at the rate of `requests` requests at a time.
    void start_again(Micros now, double requests) noexcept;

    // Requests per second; 0 if there is no limit.
    double limit() const noexcept { return limit_; }
    bool is_lowered() const noexcept { return limit_ > 0; }
    // True if the limit was lowered because the lane asked for less, and not only set after an
    // outage.
    bool is_throttled() const noexcept { return is_lowered() && !starts_; }
    // No request may be sent before this time.
    Micros earliest() const noexcept { return is_lowered() ? next_at_ : 0; }
    // Usual duration of a request that is not throttled; 0 if it is not known.
    Micros usual_duration() const noexcept { return static_cast<Micros>(duration_); }

  private:
    bool is_sample(Micros now) const noexcept;
    void take_sample(Micros now) noexcept;

    bool is_in_vain(double share) const noexcept;
    void lower(Micros now, double share, double rate) noexcept;

    double limit_ = 0;
    double tolerated_ = tolerated;
    double rate_before_ = 0;  // when it was last halved; 0 once a sample was fine
    double share_before_ = 0;
    double duration_ = 0;  // moving average
    Micros next_at_ = 0;
    Micros lowered_at_ = 0;
    unsigned calm_ = 0;  // samples
    bool starts_ = false;
    // The current sample.
    Micros began_at_ = 0;
    unsigned answers_ = 0;
    unsigned throttled_ = 0;
    double recent_ = 0;  // throttled share, a moving average over samples
};

}  // namespace outbox
