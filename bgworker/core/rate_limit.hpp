// How often something may happen: a number of times at once, and one more time per period.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "clock.hpp"

namespace outbox {

class RateLimit {
  public:
    RateLimit(int at_once, Micros period) : at_once_(at_once), left_(at_once), period_(period) {}

    // May it happen now?
    bool take(Micros now) noexcept {
        const Micros periods = (now - since_) / period_;
        if (periods > 0) {
            left_ = static_cast<int>(std::min<Micros>(at_once_, left_ + periods));
            since_ += periods * period_;
        }
        if (left_ == 0) {
            left_out_++;
            return false;
        }
        left_--;
        return true;
    }

    // How often it could not happen since this was last asked.
    std::uint64_t left_out() noexcept { return std::exchange(left_out_, 0); }

  private:
    int at_once_;
    int left_;
    Micros period_;
    Micros since_ = 0;
    std::uint64_t left_out_ = 0;
};

}  // namespace outbox
