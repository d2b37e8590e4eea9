#include "net/watchdog.hpp"

#include <pthread.h>

#include "core/signals.hpp"

namespace outbox {

Watchdog::Watchdog(std::chrono::milliseconds limit, std::function<void()> bark)
    : limit_(limit), bark_(std::move(bark)) {
    if (pthread_getcpuclockid(pthread_self(), &clock_) != 0)
        clock_ = CLOCK_MONOTONIC;
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

void Watchdog::begin() noexcept {
    work_++;
    if (!sleeps_)
        return;
    {
        const std::lock_guard lock(mutex_);
        sleeps_ = false;
    }
    wake_.notify_one();
}

std::chrono::nanoseconds Watchdog::time_used() const noexcept {
    timespec time{};
    clock_gettime(clock_, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void Watchdog::watch() noexcept {
    std::unique_lock lock(mutex_);
    std::uint64_t seen = work_;
    std::chrono::nanoseconds used = time_used();
    while (!over_) {
        wake_.wait_for(lock, limit_, [this] { return over_; });
        const std::uint64_t now = work_;
        if (now != seen) {
            seen = now;
            used = time_used();
        } else if (now % 2 == 1) {
            if (time_used() - used > limit_ / 2)
                bark_();
        } else {
            sleeps_ = true;
            if (work_ != now)  // begin() may have missed `sleeps_`
                sleeps_ = false;
            wake_.wait(lock, [this] { return over_ || !sleeps_; });
            seen = work_;
            used = time_used();
        }
    }
}

}  // namespace outbox
