// Counters of a worker's deliveries, in shared memory. There is one writer and any number of
// readers. Nobody waits: a reader may see counters that were written at slightly different moments.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "core/clock.hpp"

namespace outbox {

// Latencies in buckets of a quarter of a power of two. A percentile is never too low, and at most
// 25 % too high.
//
// There are two generations of `generation_length` each, so that a percentile covers the last
// minutes and not the whole life of the server.
class LatencyHistogram {
  public:
    static constexpr std::size_t buckets = 160;  // up to 2^40 µs, twelve days
    static constexpr Micros generation_length = seconds(60);

    // For the writer only. `now` is the time of any clock that only moves forward.
    void add(Micros latency, Micros now, std::uint64_t count = 1) noexcept;
    // Returns the latency that `fraction` (0..1) of the recent ones did not exceed, or std::nullopt
    // if there are none.
    std::optional<Micros> percentile(double fraction) const noexcept;
    void reset() noexcept;

    static std::size_t bucket_of(Micros latency) noexcept;
    static Micros upper_bound_of(std::size_t bucket) noexcept;

  private:
    using Generation = std::array<std::atomic<std::uint64_t>, buckets>;
    std::array<Generation, 2> generations_{};
    std::atomic<std::uint32_t> current_{0};
    std::atomic<Micros> started_{0};
};

// Latencies since the worker started, in the fixed buckets of a histogram for Prometheus. They are
// coarser than those above, and the sum is exact.
class LatencyBuckets {
  public:
    // The last bucket, without a bound, is for all that are longer.
    static constexpr std::array<Micros, 16> bounds{
        1'000,   2'500,     5'000,     10'000,    25'000,     50'000,     100'000,    250'000,
        500'000, 1'000'000, 2'500'000, 5'000'000, 10'000'000, 30'000'000, 60'000'000, 300'000'000};
    static constexpr std::size_t count = bounds.size() + 1;

    struct Figures {
        // Cumulative: the number of latencies up to each bound. The last one is that of all.
        std::array<std::uint64_t, count> up_to{};
        Micros sum = 0;

        Figures since(const Figures& before) const noexcept;
    };

    // For the writer only. A negative latency, from clocks that differ, counts as 0.
    void add(Micros latency) noexcept;
    Figures figures() const noexcept;
    void reset() noexcept;

  private:
    std::array<std::atomic<std::uint64_t>, count> counts_{};
    std::atomic<std::uint64_t> sum_{0};
};

struct DeliveryStats {
    std::atomic<std::uint64_t> delivered{0};  // events settled
    std::atomic<std::uint64_t> bytes{0};      // of their payloads
    std::atomic<std::uint64_t> failures{0};   // failed batches or handlers
    // Included in `failures`: the destination asked for fewer requests.
    std::atomic<std::uint64_t> throttled_answers{0};
    // Counters of earlier relays of the same destination, from the saved cursor.
    std::atomic<std::uint64_t> delivered_before{0}, failures_before{0};
    LatencyHistogram latency;  // from occurred_at to settled, of recent events
    LatencyBuckets latencies;  // the same of all events

    std::uint64_t all_delivered() const noexcept;
    std::uint64_t all_failures() const noexcept;

    // For the writer only.
    // Goes on from saved counters, which may include events of this writer. The sums never go back.
    void continue_from(std::uint64_t delivered_by_all, std::uint64_t failures_of_all) noexcept;
    // Without a latency the event counts, but not its age: it is delivered again.
    void settled(std::optional<Micros> latency_of_event, std::uint64_t payload_bytes,
                 Micros now) noexcept;
    void failed(std::uint64_t attempts = 1) noexcept;
    void throttled() noexcept;
    void reset() noexcept;
};

}  // namespace outbox
