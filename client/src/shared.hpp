// The state that the threads of a consumer share.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>

#include "counters.hpp"
#include "flag.hpp"
#include "inbox/consumer.hpp"

namespace inbox {

// Events that failed here and were given back. When one succeeds, the database must be told; for
// all other events this would be a wasted statement.
class FailedEvents {
  public:
    // Returns how many of its failures are known here.
    unsigned add(const std::string& event_id) {
        const std::lock_guard lock(mutex_);
        if (attempts_.size() >= max_events && !attempts_.contains(event_id))
            attempts_.erase(attempts_.begin());
        return ++attempts_[event_id];
    }
    bool contains(const std::string& event_id) const {
        const std::lock_guard lock(mutex_);
        return !attempts_.empty() && attempts_.contains(event_id);
    }
    void remove(const std::string& event_id) {
        const std::lock_guard lock(mutex_);
        attempts_.erase(event_id);
    }

  private:
    static constexpr std::size_t max_events = 10'000;
    mutable std::mutex mutex_;
    std::unordered_map<std::string, unsigned> attempts_;
};

struct Shared {
    const ConsumerOptions options;
    const std::string instance;
    const std::string subscription;
    const ConnectionFactory connect;
    const Handler handler;

    Counters counters{};
    FailedEvents failed{};
    std::atomic<bool> reported_outstanding{false};  // the last report had events outstanding
    Flag stop{};                                    // nothing more may begin
    Flag give_up{};                                 // work that has begun must be abandoned

    void log(Level level, const std::string& message) const {
        if (options.log)
            options.log(level, "consumer \"" + options.name + "\": " + message);
    }
};

}  // namespace inbox
