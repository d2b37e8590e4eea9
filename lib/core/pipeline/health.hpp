// Whether a lane, or the destination, takes requests: evidence, back-off, probes.
//
//   Circuit     open or down. While it is down nothing goes until a back-off has passed (exponential,
//               full jitter), then one request as a probe. Its confirmation closes the matter.
//   LaneHealth  counts the evidence on a lane and decides when it is down.
//
// Evidence is what becomes of requests with fresh keys: those that have not failed. A request that
// was sent before the last failure tells nothing new. The pipeline sees to the first, `Circuit` to
// the second.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/backoff.hpp"
#include "core/clock.hpp"
#include "core/pipeline/flow_limit.hpp"

namespace outbox {

class Circuit {
  public:
    Circuit(Micros base, Micros cap, std::uint64_t seed) noexcept : backoff_(base, cap, seed) {}

    // Counts failures; a request belongs to the period in which it was sent.
    std::uint64_t period() const noexcept { return period_; }
    bool is_down() const noexcept { return failures_ > 0; }
    // Failures since the last confirmation.
    std::uint64_t failures() const noexcept { return failures_; }
    bool may_send(Micros now) const noexcept {
        return failures_ == 0 || (now >= resume_at_ && in_flight_ == 0);
    }
    // When it may be probed; 0: at once, or when the probe under way has ended.
    Micros resume_at() const noexcept { return resume_at_; }
    bool is_probed() const noexcept { return failures_ > 0 && in_flight_ > 0; }

    void sent() noexcept { in_flight_++; }
    void ended(std::uint64_t period) noexcept {
        if (period == period_)
            in_flight_--;
    }
    // `retry_after`: the destination asks to be left alone for so long.
    void failed(Micros now, Micros retry_after) noexcept {
        period_++;
        in_flight_ = 0;
        failures_++;
        leave_alone(now + std::max(retry_after, backoff_.next()));
    }
    void leave_alone(Micros until) noexcept { resume_at_ = std::max(resume_at_, until); }
    void works() noexcept {
        failures_ = 0;
        resume_at_ = 0;
        backoff_.reset();
    }

  private:
    Backoff backoff_;
    std::uint64_t period_ = 0;
    std::uint64_t failures_ = 0;
    std::size_t in_flight_ = 0;  // requests of this period
    Micros resume_at_ = 0;
};

class LaneHealth {
  public:
    // Refused events in a row after which the lane is backed off from: more likely than all events
    // it is the receiver that is wrong.
    static constexpr unsigned max_refused_in_a_row = 10;
    // Throttled requests in a row that are an outage.
    static constexpr unsigned max_throttled_in_a_row = 64;

    LaneHealth(std::size_t requests, Micros base, Micros cap, std::uint64_t seed) noexcept
        : circuit(base, cap, seed), max_failed_in_a_row_(failed_in_a_row(requests)) {}

    // Failed requests in a row that are a failure of the lane: half of those that go side by side.
    static constexpr unsigned failed_in_a_row(std::size_t requests) noexcept {
        return static_cast<unsigned>(std::clamp<std::size_t>(requests / 2, 3, 8));
    }

    // Each: true if the lane is down by it, in which case the circuit must be told.
    bool failed() noexcept { return ++failed_ >= max_failed_in_a_row_ || circuit.is_down(); }
    bool refused() noexcept { return ++refused_ > max_refused_in_a_row; }
    bool throttled() noexcept {
        return ++throttled_ >= max_throttled_in_a_row || circuit.is_down();
    }
    void confirmed() noexcept {
        successes_++;
        failed_ = refused_ = throttled_ = 0;
    }

    std::uint64_t successes() const noexcept { return successes_; }
    // The last evidence is a failure.
    bool last_failed() const noexcept { return failed_ + throttled_ > 0; }

    Circuit circuit;
    FlowLimit flow;
    Micros not_before = 0;  // as the lane has asked for

  private:
    unsigned max_failed_in_a_row_;
    unsigned failed_ = 0;  // in a row
    unsigned refused_ = 0;
    unsigned throttled_ = 0;
    std::uint64_t successes_ = 0;
};

}  // namespace outbox
