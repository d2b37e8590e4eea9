// Exponential back-off with full jitter: the n-th delay is uniform in (0, min(cap, base * 2^n)].
//
// Full jitter keeps many relays that lost the same broker from coming back in step
// (Brooker, "Exponential Backoff And Jitter", 2015).
#pragma once

#include <cstdint>

#include "core/clock.hpp"

namespace outbox {

class Backoff {
  public:
    Backoff(Micros base, Micros cap, std::uint64_t seed) noexcept
        : base_(base), cap_(cap), random_(seed | 1) {}

    // Changes the limits, as after a reload of the configuration. The number of steps stays.
    void set_limits(Micros base, Micros cap) noexcept {
        base_ = base;
        cap_ = cap;
    }

    // Returns the next delay in microseconds, and counts a step.
    Micros next() noexcept;
    // Returns a delay as after `steps` steps, without counting one.
    Micros after(unsigned steps) noexcept { return jittered(ceiling(steps)); }

    void reset() noexcept { steps_ = 0; }
    unsigned steps() const noexcept { return steps_; }

  private:
    Micros ceiling(unsigned steps) const noexcept;
    Micros jittered(Micros ceiling) noexcept;

    Micros base_;
    Micros cap_;
    std::uint64_t random_;
    unsigned steps_ = 0;
};

// Returns a seed that differs between processes and between starts.
std::uint64_t random_seed() noexcept;

}  // namespace outbox
