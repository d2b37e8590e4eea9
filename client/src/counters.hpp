// The counters of a consumer.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>

#include "core/delivery_stats.hpp"
#include "inbox/consumer.hpp"

namespace inbox {

// The last thousand times.
class RecentTimes {
  public:
    void add(std::chrono::microseconds time);
    // Sets p50 and p99, unless there are no times.
    void percentiles(std::chrono::microseconds& p50, std::chrono::microseconds& p99) const;

  private:
    mutable std::mutex mutex_;
    std::array<std::chrono::microseconds, 1000> times_{};
    std::size_t count_ = 0;  // since the beginning
};

// A histogram that several threads write.
class Latencies {
  public:
    void add(std::span<const std::chrono::microseconds> latencies);
    outbox::LatencyBuckets::Figures figures() const;

  private:
    mutable std::mutex mutex_;
    outbox::LatencyBuckets buckets_;
};

struct Counters {
    std::atomic<std::uint64_t> received{0}, applied{0}, duplicates{0}, failures{0}, dead{0},
        acked{0}, nacked{0}, transactions{0}, in_doubt{0}, database_reconnects{0},
        source_reconnects{0}, skipped{0}, recreated{0};
    std::atomic<std::int64_t> lag_ms{0};
    // Events settled by appliers, and how many of them the database has been told of.
    std::atomic<std::uint64_t> settled{0}, reported{0};
    RecentTimes times;
    RecentTimes
        recent_latencies;  // from occurred_at to committed, of one event of each transaction
    Latencies latencies;   // of all events applied
    outbox::LatencyBuckets::Figures reported_latencies;

    ConsumerMetrics snapshot() const;
};

}  // namespace inbox
