#include "core/clock.hpp"

#include <ctime>

namespace outbox {

static Micros read_clock(clockid_t id) noexcept {
    timespec t{};
    clock_gettime(id, &t);
    return static_cast<Micros>(t.tv_sec) * 1'000'000 + t.tv_nsec / 1000;
}

Micros SystemClock::now() const noexcept {
    return read_clock(CLOCK_MONOTONIC);
}

Micros SystemClock::unix_now() const noexcept {
    return read_clock(CLOCK_REALTIME);
}

}  // namespace outbox
