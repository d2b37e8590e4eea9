#include "relay/database/poller.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace outbox::relay {

// A wait that ends by itself this late loses nothing.
static constexpr Micros max_wait = seconds(60);

static int checked(int descriptor, const char* what) {
    if (descriptor < 0)
        throw std::system_error(errno, std::generic_category(), what);
    return descriptor;
}

Poller::Poller()
    : epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "could not create an epoll descriptor")),
      timer_(checked(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
                     "could not create a timer")) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = timer_;
    checked(epoll_ctl(epoll_, EPOLL_CTL_ADD, timer_, &event), "could not watch a timer");
}

Poller::~Poller() {
    close(timer_);
    close(epoll_);
}

void Poller::watch(int descriptor, std::uint32_t events, Watcher& watcher) {
    const auto index = static_cast<std::size_t>(descriptor);
    if (watchers_.size() <= index)
        watchers_.resize(index + 1);
    epoll_event event{};
    event.events = events;
    event.data.fd = descriptor;
    checked(epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event), "could not watch a descriptor");
    watchers_[index] = &watcher;
}

void Poller::rewatch(int descriptor, std::uint32_t events) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.fd = descriptor;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, descriptor, &event);
}

void Poller::forget(int descriptor) noexcept {
    const auto index = static_cast<std::size_t>(descriptor);
    if (index >= watchers_.size() || watchers_[index] == nullptr)
        return;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
    watchers_[index] = nullptr;
}

void Poller::set_timer(Micros at_most) noexcept {
    itimerspec when{};
    when.it_value.tv_sec = at_most / 1'000'000;
    when.it_value.tv_nsec = at_most % 1'000'000 * 1000;
    timerfd_settime(timer_, 0, &when, nullptr);
    timer_is_set_ = at_most > 0;
}

void Poller::wait(Micros at_most) {
    at_most = std::clamp<Micros>(at_most, 0, max_wait);
    if (at_most > 0 || timer_is_set_)
        set_timer(at_most);  // 0 disarms it
    std::array<epoll_event, 64> events;
    const int count =
        epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), at_most > 0 ? -1 : 0);
    for (int i = 0; i < count; i++) {
        const auto index = static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data.fd);
        // A watcher that was called before may have removed it.
        if (index < watchers_.size() && watchers_[index] != nullptr)
            watchers_[index]->ready();
    }
}

}  // namespace outbox::relay
