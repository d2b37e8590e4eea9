#include "core/delivery_stats.hpp"

#include <algorithm>
#include <bit>

namespace outbox {

// There is one writer only, so a relaxed load and store increments without a locked instruction.
static void bump(std::atomic<std::uint64_t>& counter, std::uint64_t by) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

std::size_t LatencyHistogram::bucket_of(Micros latency) noexcept {
    if (latency < 4)
        return latency < 0 ? 0 : static_cast<std::size_t>(latency);
    const auto value = static_cast<std::uint64_t>(latency);
    const unsigned exponent = static_cast<unsigned>(std::bit_width(value)) - 1;  // >= 2
    const std::size_t quarter = (value >> (exponent - 2)) & 3;
    const std::size_t bucket = (exponent - 1) * 4 + quarter;
    return bucket < buckets ? bucket : buckets - 1;
}

Micros LatencyHistogram::upper_bound_of(std::size_t bucket) noexcept {
    if (bucket < 4)
        return static_cast<Micros>(bucket);
    const unsigned exponent = static_cast<unsigned>(bucket / 4) + 1;
    const Micros quarter = static_cast<Micros>(bucket % 4);
    return ((4 + quarter + 1) << (exponent - 2)) - 1;
}

void LatencyHistogram::add(Micros latency, Micros now, std::uint64_t count) noexcept {
    const Micros started = started_.load(std::memory_order_relaxed);
    std::uint32_t current = current_.load(std::memory_order_relaxed);
    if (now - started >= generation_length) {
        current ^= 1;
        for (auto& bucket : generations_[current])
            bucket.store(0, std::memory_order_relaxed);
        if (now - started >= 2 * generation_length)  // the other one is stale as well
            for (auto& bucket : generations_[current ^ 1])
                bucket.store(0, std::memory_order_relaxed);
        current_.store(current, std::memory_order_relaxed);
        started_.store(now, std::memory_order_relaxed);
    }
    bump(generations_[current][bucket_of(latency)], count);
}

std::optional<Micros> LatencyHistogram::percentile(double fraction) const noexcept {
    std::array<std::uint64_t, buckets> counts{};
    std::uint64_t total = 0;
    for (const Generation& generation : generations_)
        for (std::size_t i = 0; i < buckets; i++) {
            const std::uint64_t n = generation[i].load(std::memory_order_relaxed);
            counts[i] += n;
            total += n;
        }
    if (total == 0)
        return std::nullopt;

    const double wanted = fraction * static_cast<double>(total);
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets; i++) {
        seen += counts[i];
        if (seen > 0 && static_cast<double>(seen) >= wanted)
            return upper_bound_of(i);
    }
    return upper_bound_of(buckets - 1);
}

void LatencyHistogram::reset() noexcept {
    for (Generation& generation : generations_)
        for (auto& bucket : generation)
            bucket.store(0, std::memory_order_relaxed);
    current_.store(0, std::memory_order_relaxed);
    started_.store(0, std::memory_order_relaxed);
}

// For each bucket of LatencyHistogram, the first bound that is not below all of it. No such bucket
// has two bounds in it, so that one comparison is left for each event.
static const auto first_bounds = [] {
    std::array<std::uint8_t, LatencyHistogram::buckets> first{};
    for (std::size_t i = 1; i < first.size(); i++) {
        const Micros shortest = LatencyHistogram::upper_bound_of(i - 1) + 1;
        first[i] =
            static_cast<std::uint8_t>(std::lower_bound(LatencyBuckets::bounds.begin(),
                                                       LatencyBuckets::bounds.end(), shortest) -
                                      LatencyBuckets::bounds.begin());
    }
    return first;
}();

void LatencyBuckets::add(Micros latency) noexcept {
    latency = std::max<Micros>(latency, 0);
    std::size_t bucket = first_bounds[LatencyHistogram::bucket_of(latency)];
    if (bucket < bounds.size() && latency > bounds[bucket])
        bucket++;
    bump(counts_[bucket], 1);
    bump(sum_, static_cast<std::uint64_t>(latency));
}

LatencyBuckets::Figures LatencyBuckets::figures() const noexcept {
    Figures figures;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < count; i++) {
        total += counts_[i].load(std::memory_order_relaxed);
        figures.up_to[i] = total;
    }
    figures.sum = static_cast<Micros>(sum_.load(std::memory_order_relaxed));
    return figures;
}

LatencyBuckets::Figures LatencyBuckets::Figures::since(const Figures& before) const noexcept {
    Figures more = *this;
    for (std::size_t i = 0; i < count; i++)
        more.up_to[i] -= before.up_to[i];
    more.sum -= before.sum;
    return more;
}

void LatencyBuckets::reset() noexcept {
    for (auto& bucket : counts_)
        bucket.store(0, std::memory_order_relaxed);
    sum_.store(0, std::memory_order_relaxed);
}

std::uint64_t DeliveryStats::all_delivered() const noexcept {
    return delivered_before.load(std::memory_order_relaxed) +
           delivered.load(std::memory_order_relaxed);
}

std::uint64_t DeliveryStats::all_failures() const noexcept {
    return failures_before.load(std::memory_order_relaxed) +
           failures.load(std::memory_order_relaxed);
}

static void raise_sum(std::atomic<std::uint64_t>& before, std::uint64_t sum,
                      std::uint64_t saved) noexcept {
    if (saved > sum)
        bump(before, saved - sum);
}

void DeliveryStats::continue_from(std::uint64_t delivered_by_all,
                                  std::uint64_t failures_of_all) noexcept {
    raise_sum(delivered_before, all_delivered(), delivered_by_all);
    raise_sum(failures_before, all_failures(), failures_of_all);
}

void DeliveryStats::settled(std::optional<Micros> latency_of_event, std::uint64_t payload_bytes,
                            Micros now) noexcept {
    bump(delivered, 1);
    bump(bytes, payload_bytes);
    if (!latency_of_event)
        return;
    latency.add(*latency_of_event, now);
    latencies.add(*latency_of_event);
}

void DeliveryStats::failed(std::uint64_t attempts) noexcept {
    bump(failures, attempts);
}

void DeliveryStats::throttled() noexcept {
    bump(throttled_answers, 1);
}

void DeliveryStats::reset() noexcept {
    delivered.store(0, std::memory_order_relaxed);
    bytes.store(0, std::memory_order_relaxed);
    failures.store(0, std::memory_order_relaxed);
    delivered_before.store(0, std::memory_order_relaxed);
    failures_before.store(0, std::memory_order_relaxed);
    throttled_answers.store(0, std::memory_order_relaxed);
    latency.reset();
    latencies.reset();
}

}  // namespace outbox
