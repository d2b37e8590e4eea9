// Interrupts a library call that does not end.
//
// A peer that sends faster than libcurl reads can keep libcurl in one call indefinitely. Then
// neither a timeout nor the request to end the process is noticed. A thread watches, and calls
// `bark` when one piece of work has used too much processor time. Elapsed time does not count: on a
// loaded machine every piece of work takes long.
//
// Protocol. `work_` is odd while a piece of work is going on. Only the watched thread writes it:
// begin() and end() each add one. The watching thread looks at it once per `limit`. The same odd
// number twice means that the same piece of work is still going on; its processor time since the
// first look decides. The same even number twice means that there is no work, and the watching
// thread goes to sleep. It first sets `sleeps_` and then reads `work_` again, whereas begin() first
// changes `work_` and then reads `sleeps_`. All four are sequentially consistent, so at least one
// of the two sees the other: no piece of work begins unwatched. Clearing `sleeps_` and `over_`
// under `mutex_` keeps the notification from being lost. `bark` runs in the watching thread, and
// the work may just have ended.
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
    // Watches the thread that makes it. `bark` is called in another thread, repeatedly while the
    // work goes on.
    Watchdog(std::chrono::milliseconds limit, std::function<void()> bark);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    // Encloses a piece of work. It wakes the watching thread only if that thread sleeps.
    void begin() noexcept;
    void end() noexcept { work_++; }

  private:
    void watch() noexcept;
    std::chrono::nanoseconds time_used() const noexcept;

    const std::chrono::milliseconds limit_;
    const std::function<void()> bark_;
    clockid_t clock_;                      // clock of the processor time of the watched thread
    std::atomic<std::uint64_t> work_ = 0;  // odd while a piece of work is going on
    std::atomic<bool> sleeps_ = false;
    bool over_ = false;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::thread thread_;
};

}  // namespace outbox
