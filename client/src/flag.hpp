// A flag that is raised once and stays raised. Threads can wait for it, also in poll() with others.
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

    // Safe in a signal handler.
    void raise() noexcept;
    bool raised() const noexcept { return raised_; }
    // Waits for at most `limit`. Returns whether the flag is raised.
    bool wait(std::chrono::milliseconds limit) const noexcept;
    void wait() const noexcept;
    // Readable once the flag is raised.
    int descriptor() const noexcept { return descriptor_; }

  private:
    std::atomic<bool> raised_{false};
    int descriptor_;
};

}  // namespace inbox
