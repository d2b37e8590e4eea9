// Exponential back-off with full jitter: the n-th pause is a random part of base * 2^n, at most of
// max.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace inbox {

class Backoff {
  public:
    Backoff(std::chrono::milliseconds base, std::chrono::milliseconds max)
        : base_(base), max_(max), random_(std::random_device{}()) {}

    std::chrono::milliseconds next() { return after(steps_++); }
    // The pause after so many; counts none.
    std::chrono::milliseconds after(unsigned steps) {
        const auto ceiling = std::min(max_, base_ * (std::int64_t{1} << std::min(steps, 20u)));
        return std::chrono::milliseconds{
            std::uniform_int_distribution<std::int64_t>(0, ceiling.count())(random_)};
    }
    void reset() { steps_ = 0; }

  private:
    std::chrono::milliseconds base_;
    std::chrono::milliseconds max_;
    std::minstd_rand random_;
    unsigned steps_ = 0;
};

}  // namespace inbox
