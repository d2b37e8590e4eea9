// One descriptor for several: it becomes readable when one of them is.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

namespace outbox {

class WaitSet {
  public:
    WaitSet() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}
    ~WaitSet() {
        if (epoll_ >= 0)
            close(epoll_);
    }
    WaitSet(const WaitSet&) = delete;
    WaitSet& operator=(const WaitSet&) = delete;

    // Its owner closes it. -1 is ignored.
    void add(int descriptor) noexcept {
        epoll_event event{};
        event.events = EPOLLIN;
        if (descriptor >= 0)
            epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
    }
    int descriptor() const noexcept { return epoll_; }

  private:
    const int epoll_;
};

}  // namespace outbox
