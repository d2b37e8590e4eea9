// Decides whether a lane, or the destination, accepts requests: evidence, back-off, probes.
//
//   Circuit     works or is down. While it is down nothing is sent until a back-off (exponential,
//               full jitter) has passed. Then one request is sent as a probe. Its confirmation
//               ends the outage.
//   LaneHealth  counts the evidence about a lane and decides when the lane is down.
//
// Evidence is the outcome of requests with fresh keys, which are keys that have not failed. The
// pipeline counts only those. A request that was sent before the last failure tells nothing new;
// `Circuit` leaves it out.
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

    // Number of failures so far. A request belongs to the period in which it was sent.
    std::uint64_t period() const noexcept { return period_; }
    bool is_down() const noexcept { return failures_ > 0; }
    // Failures since the last confirmation.
    std::uint64_t failures() const noexcept { return failures_; }
    bool may_send(Micros now) const noexcept {
        return failures_ == 0 || (now >= resume_at_ && in_flight_ == 0);
    }
    // Time from which a probe may be sent. It stays in the past while a probe is under way, and is
    // 0 while the circuit works.
    Micros resume_at() const noexcept { return resume_at_; }
    bool is_probed() const noexcept { return failures_ > 0 && in_flight_ > 0; }

    void sent() noexcept { in_flight_++; }
    void ended(std::uint64_t period) noexcept {
        if (period == period_)
            in_flight_--;
    }
    // `retry_after` is the pause that the destination asked for, or 0.
    void failed(Micros now, Micros retry_after) noexcept {
        period_++;
        in_flight_ = 0;
        failures_++;
        leave_alone(now + std::max(retry_after, backoff_.next()));
    }
    void leave_alone(Micros until) noexcept { resume_at_ = std::max(resume_at_, until); }
    // Lets the next probe go at once.
    void hurry(Micros now) noexcept {
        resume_at_ = std::min(resume_at_, now);
        backoff_.reset();
    }
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
    // After this many refused events in a row the lane is down: a fault of the receiver is more
    // likely than that many faulty events.
    static constexpr unsigned max_refused_in_a_row = 10;
    // After this many throttled requests in a row the lane is down.
    static constexpr unsigned max_throttled_in_a_row = 64;

    LaneHealth(std::size_t requests, Micros base, Micros cap, std::uint64_t seed) noexcept
        : circuit(base, cap, seed), max_failed_in_a_row_(failed_in_a_row(requests)) {}

    // After this many failed requests in a row the lane is down: half of `requests`, the most that
    // are in flight at a time.
    static constexpr unsigned failed_in_a_row(std::size_t requests) noexcept {
        return static_cast<unsigned>(std::clamp<std::size_t>(requests / 2, 3, 8));
    }

    // Each of these counts one piece of evidence. Returns true if the lane is down by it; the
    // caller must then tell the circuit.
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
    // True if the last evidence was a failure.
    bool last_failed() const noexcept { return failed_ + throttled_ > 0; }

    Circuit circuit;
    FlowLimit flow;
    Micros not_before = 0;  // the lane asked for no request before this time

  private:
    unsigned max_failed_in_a_row_;
    unsigned failed_ = 0;  // in a row, as the next two
    unsigned refused_ = 0;
    unsigned throttled_ = 0;
    std::uint64_t successes_ = 0;
};

}  // namespace outbox
