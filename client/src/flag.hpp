// A flag that is raised once and stays so. Can be waited for, with others in poll() as well.
#pragma once

#include <atomic>
#include <chrono>

namespace inbox {

class Flag {
  public:
    Flag();
    ~Flag();
    Flag(const Flag&) = delete;
    Flag& operator=(const Flag&) = delete;

    // Also from a signal handler.
    void raise() noexcept;
    bool raised() const noexcept { return raised_; }
    // Waits until it is raised, at most so long; returns whether it is.
    bool wait(std::chrono::milliseconds limit) const noexcept;
    void wait() const noexcept;
    // Readable when it is raised.
    int descriptor() const noexcept { return descriptor_; }

  private:
    std::atomic<bool> raised_{false};
    int descriptor_;
};

}  // namespace inbox
