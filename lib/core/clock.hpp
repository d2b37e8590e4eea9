// Time as the core sees it: microseconds, and a clock that tests can replace.
#pragma once

#include <cstdint>
#include <limits>

namespace outbox {

using Micros = std::int64_t;

constexpr Micros never = std::numeric_limits<Micros>::max();

constexpr Micros milliseconds(std::int64_t n) {
    return n * 1000;
}
constexpr Micros seconds(std::int64_t n) {
    return n * 1'000'000;
}

class Clock {
  public:
    virtual ~Clock() = default;
    // Monotonic time, for deadlines.
    virtual Micros now() const noexcept = 0;
    // Time since the Unix epoch, for ages of events.
    virtual Micros unix_now() const noexcept = 0;
};

class SystemClock final : public Clock {
  public:
    Micros now() const noexcept override;
    Micros unix_now() const noexcept override;
};

}  // namespace outbox
