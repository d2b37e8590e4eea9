// A clock that stands still until a test moves it.
#pragma once

#include "core/clock.hpp"

namespace outbox {

class FakeClock final : public Clock {
  public:
    Micros now() const noexcept override { return now_; }
    Micros unix_now() const noexcept override { return unix_now_; }

    void advance(Micros by) noexcept {
        now_ += by;
        unix_now_ += by;
    }
    void advance_to(Micros then) noexcept {
        if (then > now_)
            advance(then - now_);
    }
    // Sets the wall clock, as an administrator or a time server may. The monotonic clock does not
    // change.
    void set_unix(Micros time) noexcept { unix_now_ = time; }

  private:
    Micros now_ = seconds(1'000);
    Micros unix_now_ = seconds(1'800'000'000);
};

}  // namespace outbox
