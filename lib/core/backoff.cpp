#include "core/backoff.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>

namespace outbox {

Micros Backoff::next() noexcept {
    const Micros longest = ceiling(steps_);
    if (longest < cap_)
        steps_++;
    return jittered(longest);
}

Micros Backoff::ceiling(unsigned steps) const noexcept {
    Micros ceiling = base_;
    for (unsigned i = 0; i < steps && ceiling < cap_; i++)
        ceiling = ceiling > cap_ / 2 ? cap_ : ceiling * 2;
    return std::max<Micros>(1, std::min(ceiling, cap_));
}

Micros Backoff::jittered(Micros ceiling) noexcept {
    // xorshift64 is enough: delays must be spread out, not unpredictable.
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return 1 + static_cast<Micros>(random_ % static_cast<std::uint64_t>(ceiling));
}

std::uint64_t random_seed() noexcept {
    std::uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = static_cast<std::uint64_t>(SystemClock{}.now()) ^
               (static_cast<std::uint64_t>(getpid()) << 32);
    return seed;
}

}  // namespace outbox
