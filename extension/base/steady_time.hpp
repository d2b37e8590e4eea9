// Durations and deadlines in the memory of server code, in Micros. They are of the monotonic clock:
// when the clock of the machine is set back by an hour, no deadline may come an hour later. Times of
// day (GetCurrentTimestamp()) are for what is stored or shown; tests/layout/clocks.py lists the places.
#pragma once

#include <algorithm>

#include "core/clock.hpp"

namespace outbox {

inline Micros steady_now() noexcept {
    return SystemClock().now();
}

// Returns the milliseconds until a time, at least 1; -1 if it is `never`.
inline long milliseconds_until(Micros time, Micros now) noexcept {
    constexpr Micros longest = milliseconds(86'400'000);
    if (time == never)
        return -1;
    return time <= now ? 1 : static_cast<long>(std::min(time - now, longest) / 1000 + 1);
}

}  // namespace outbox
