#include "relay/serve/lease.hpp"

#include <ctime>

namespace outbox::relay {

Micros boot_time() noexcept {
    timespec t{};
    clock_gettime(CLOCK_BOOTTIME, &t);
    return static_cast<Micros>(t.tv_sec) * 1'000'000 + t.tv_nsec / 1000;
}

}  // namespace outbox::relay
