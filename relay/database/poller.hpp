// Waits for many descriptors at once, by epoll, and tells the owner of each that is ready.
#pragma once

#include <cstdint>
#include <vector>

#include "core/clock.hpp"

namespace outbox::relay {

class Watcher {
  public:
    // May be called although nothing is ready any more.
    virtual void ready() = 0;

  protected:
    ~Watcher() = default;
};

class Poller {
  public:
    Poller();
    ~Poller();
    Poller(const Poller&) = delete;
    Poller& operator=(const Poller&) = delete;

    // `events` are those of epoll: EPOLLIN, EPOLLOUT.
    void watch(int descriptor, std::uint32_t events, Watcher& watcher);
    void rewatch(int descriptor, std::uint32_t events) noexcept;
    // Must be called before the descriptor is closed.
    void forget(int descriptor) noexcept;

    // Waits until a descriptor is ready, or for this time; 0 does not wait. Calls the watchers.
    void wait(Micros at_most);

  private:
    void set_timer(Micros at_most) noexcept;

    int epoll_;
    int timer_;  // epoll counts in milliseconds, which is too coarse
    bool timer_is_set_ = false;
    std::vector<Watcher*> watchers_;  // by descriptor
};

}  // namespace outbox::relay
