// Interrupts work of a library that does not come to its end.
//
// A peer that sends faster than libcurl reads can keep it in one call for as long as it likes, and
// then neither a timeout nor the end of the process is noticed. A thread watches, and barks when a
// piece of work takes too much of a processor. Time alone does not count: on a crowded machine every
// piece of work takes long.
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace outbox {

class Watchdog {
  public:
    // Watches the thread that makes it. `bark` is called in another thread, again and again while the
    // work goes on.
    Watchdog(std::chrono::milliseconds limit, std::function<void()> bark);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    // Around a piece of work. The thread is woken only if it had gone to sleep for want of work.
    void begin() noexcept;
    void end() noexcept { work_++; }

  private:
    void watch() noexcept;
    std::chrono::nanoseconds time_used() const noexcept;

    const std::chrono::milliseconds limit_;
    const std::function<void()> bark_;
    clockid_t clock_;                      // of the time that the watched thread has used
    std::atomic<std::uint64_t> work_ = 0;  // odd: going on
    std::atomic<bool> sleeps_ = false;
    bool over_ = false;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::thread thread_;
};

}  // namespace outbox
