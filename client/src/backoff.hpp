// outbox::Backoff in the units of the client: exponential back-off with full jitter. Pause number n
// is a random part of base * 2^n, and at most `max`.
#pragma once

#include <algorithm>
#include <chrono>

#include "core/backoff.hpp"

namespace inbox {

class Backoff {
  public:
    using milliseconds = std::chrono::milliseconds;

    Backoff(milliseconds base, milliseconds max)
        : backoff_(micros(base), micros(max), outbox::random_seed()) {}

    milliseconds next() { return rounded(backoff_.next()); }
    // Returns the pause after this number of steps, without counting a step.
    milliseconds after(unsigned steps) { return rounded(backoff_.after(steps)); }
    void reset() { backoff_.reset(); }
    unsigned steps() const { return backoff_.steps(); }

  private:
    static outbox::Micros micros(milliseconds time) {
        return outbox::milliseconds(std::min(time.count(), outbox::never / 1000));
    }
    static milliseconds rounded(outbox::Micros pause) {
        return std::chrono::floor<milliseconds>(std::chrono::microseconds{pause});
    }

    outbox::Backoff backoff_;
};

}  // namespace inbox
