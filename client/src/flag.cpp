#include "flag.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <cerrno>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <system_error>

namespace inbox {

Flag::Flag() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor_ < 0)
        throw std::system_error(errno, std::generic_category(), "eventfd");
}

Flag::~Flag() {
    close(descriptor_);
}

void Flag::raise() noexcept {
    const int saved = errno;
    raised_ = true;
    const std::uint64_t one = 1;
    // Fails only if the counter is at its limit, and then the descriptor is readable.
    [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof one);
    errno = saved;
}

void Flag::wait() const noexcept {
    pollfd watched{descriptor_, POLLIN, 0};
    while (!raised())
        poll(&watched, 1, -1);
}

bool Flag::wait(std::chrono::milliseconds limit) const noexcept {
    pollfd watched{descriptor_, POLLIN, 0};
    poll(&watched, 1,
         static_cast<int>(
             std::clamp<std::int64_t>(limit.count(), 0, std::numeric_limits<int>::max())));
    return raised();
}

}  // namespace inbox
