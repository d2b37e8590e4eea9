#include "core/delivery_stats.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace outbox {
namespace {

using Histogram = LatencyHistogram;

constexpr Micros minute = Histogram::generation_length;
constexpr Micros start = 1'800'000'000 * seconds(1);

// The error of a percentile that the header documents.
constexpr double documented_error = 0.25;

// Latencies around the bounds of all buckets, up to twelve days.
std::vector<Micros> telling_latencies() {
    std::vector<Micros> latencies;
    for (Micros power = 1; power <= Micros{1} << 40; power *= 2)
        for (Micros eighth = 0; eighth < 8; eighth++)
            for (Micros off : {-1, 0, 1})
                latencies.push_back(power + power * eighth / 8 + off);
    return latencies;
}

TEST(LatencyHistogram, EveryLatencyLiesInItsBucket) {
    for (Micros latency : telling_latencies()) {
        const std::size_t bucket = Histogram::bucket_of(latency);
        ASSERT_LT(bucket, Histogram::buckets) << latency;
        EXPECT_LE(latency, Histogram::upper_bound_of(bucket));
        if (bucket > 0) {
            EXPECT_GT(latency, Histogram::upper_bound_of(bucket - 1));
        }
    }
}

TEST(LatencyHistogram, BucketsFollowEachOtherWithoutGap) {
    EXPECT_EQ(Histogram::bucket_of(0), 0u);
    for (std::size_t bucket = 0; bucket + 1 < Histogram::buckets; bucket++) {
        const Micros bound = Histogram::upper_bound_of(bucket);
        EXPECT_EQ(Histogram::bucket_of(bound), bucket);
        EXPECT_EQ(Histogram::bucket_of(bound + 1), bucket + 1);
    }
}

TEST(LatencyHistogram, ShortLatenciesAreExact) {
    for (Micros latency = 0; latency < 8; latency++)
        EXPECT_EQ(Histogram::upper_bound_of(Histogram::bucket_of(latency)), latency);
}

TEST(LatencyHistogram, TakesLatenciesOutOfItsRange) {
    EXPECT_EQ(Histogram::bucket_of(-1), 0u) << "an event from the future";
    EXPECT_EQ(Histogram::bucket_of(std::numeric_limits<Micros>::min()), 0u);
    EXPECT_EQ(Histogram::bucket_of(std::numeric_limits<Micros>::max()), Histogram::buckets - 1);
    EXPECT_LT(Histogram::bucket_of(Micros{1} << 40), Histogram::buckets - 1);
}

TEST(LatencyHistogram, HasNoPercentileWithoutLatencies) {
    EXPECT_EQ(Histogram{}.percentile(0.5), std::nullopt);
}

TEST(LatencyHistogram, APercentileIsNeverTooLow) {
    for (Micros latency : telling_latencies()) {
        Histogram histogram;
        histogram.add(latency, start);
        EXPECT_GE(histogram.percentile(0.5), latency);
    }
}

TEST(LatencyHistogram, APercentileIsWithinTheDocumentedError) {
    for (Micros latency : telling_latencies()) {
        Histogram histogram;
        histogram.add(latency, start);
        const double limit = static_cast<double>(latency) * (1 + documented_error);
        ASSERT_LE(static_cast<double>(*histogram.percentile(0.5)), limit) << "of " << latency;
    }
}

TEST(LatencyHistogram, PercentilesCountFromTheShortest) {
    Histogram histogram;
    histogram.add(1, start, 50);
    histogram.add(2, start, 49);
    histogram.add(7, start);
    EXPECT_EQ(histogram.percentile(0.0), 1);
    EXPECT_EQ(histogram.percentile(0.5), 1);
    EXPECT_EQ(histogram.percentile(0.51), 2);
    EXPECT_EQ(histogram.percentile(0.99), 2);
    EXPECT_EQ(histogram.percentile(0.995), 7);
    EXPECT_EQ(histogram.percentile(1.0), 7);
}

TEST(LatencyHistogram, RemembersAtLeastOneGeneration) {
    Histogram histogram;
    histogram.add(1, start);
    histogram.add(2, start + minute - 1);
    histogram.add(7, start + minute);
    EXPECT_EQ(histogram.percentile(0.0), 1);
    histogram.add(7, start + 2 * minute - 1);
    EXPECT_EQ(histogram.percentile(0.0), 1);
}

TEST(LatencyHistogram, ForgetsAfterTwoGenerations) {
    Histogram histogram;
    histogram.add(1, start);
    histogram.add(3, start + minute);
    histogram.add(7, start + 2 * minute);
    EXPECT_EQ(histogram.percentile(0.0), 3);
    histogram.add(7, start + 3 * minute);
    EXPECT_EQ(histogram.percentile(0.0), 7);
}

TEST(LatencyHistogram, ForgetsEverythingAfterALongPause) {
    Histogram histogram;
    histogram.add(1, start);
    histogram.add(2, start + minute);
    histogram.add(7, start + 3 * minute);
    EXPECT_EQ(histogram.percentile(0.0), 7);
}

TEST(LatencyHistogram, IsEmptyAfterAReset) {
    Histogram histogram;
    histogram.add(1, start);
    histogram.add(1, start + minute);
    histogram.reset();
    EXPECT_EQ(histogram.percentile(0.5), std::nullopt);
    histogram.add(5, start + minute);
    EXPECT_EQ(histogram.percentile(0.5), 5);
}

TEST(LatencyBuckets, CountsUpToAndIncludingEachBound) {
    LatencyBuckets buckets;
    for (const Micros bound : LatencyBuckets::bounds) {
        buckets.add(bound);
        buckets.add(bound + 1);
    }
    const LatencyBuckets::Figures figures = buckets.figures();
    for (std::size_t i = 0; i < LatencyBuckets::bounds.size(); i++)
        EXPECT_EQ(figures.up_to[i], 2 * i + 1) << LatencyBuckets::bounds[i];
    EXPECT_EQ(figures.up_to.back(), 2 * LatencyBuckets::bounds.size());
    Micros sum = 0;
    for (const Micros bound : LatencyBuckets::bounds)
        sum += 2 * bound + 1;
    EXPECT_EQ(figures.sum, sum);
}

TEST(LatencyBuckets, TakesLatenciesOfAnyLength) {
    LatencyBuckets buckets;
    buckets.add(-5);
    buckets.add(0);
    buckets.add(seconds(1'000'000));
    const LatencyBuckets::Figures figures = buckets.figures();
    EXPECT_EQ(figures.up_to.front(), 2u);
    EXPECT_EQ(figures.up_to[LatencyBuckets::bounds.size() - 1], 2u);
    EXPECT_EQ(figures.up_to.back(), 3u);
    EXPECT_EQ(figures.sum, seconds(1'000'000));
    buckets.reset();
    EXPECT_EQ(buckets.figures().up_to.back(), 0u);
    EXPECT_EQ(buckets.figures().sum, 0);
}

TEST(DeliveryStats, WithoutALatencyAnEventOnlyCounts) {
    DeliveryStats stats;
    stats.settled(std::nullopt, 512, start);
    EXPECT_EQ(stats.delivered, 1u);
    EXPECT_EQ(stats.bytes, 512u);
    EXPECT_EQ(stats.latency.percentile(0.5), std::nullopt);
    EXPECT_EQ(stats.latencies.figures().up_to.back(), 0u);
}

TEST(DeliveryStats, CountsEventsBytesAndFailures) {
    DeliveryStats stats;
    stats.settled(100, 512, start);
    stats.settled(100, 0, start);
    stats.failed();
    EXPECT_EQ(stats.delivered, 2u);
    EXPECT_EQ(stats.bytes, 512u);
    EXPECT_EQ(stats.failures, 1u);
    EXPECT_EQ(stats.latencies.figures().up_to.front(), 2u);
    EXPECT_EQ(stats.latencies.figures().sum, 200);
    EXPECT_EQ(stats.latency.percentile(0.5), Histogram::upper_bound_of(Histogram::bucket_of(100)));
}

TEST(DeliveryStats, AreZeroAfterAReset) {
    DeliveryStats stats;
    stats.settled(100, 512, start);
    stats.failed();
    stats.reset();
    EXPECT_EQ(stats.delivered, 0u);
    EXPECT_EQ(stats.bytes, 0u);
    EXPECT_EQ(stats.failures, 0u);
    EXPECT_EQ(stats.latency.percentile(0.5), std::nullopt);
}

TEST(DeliveryStats, CountsOnFromSavedCounters) {
    DeliveryStats stats;
    stats.continue_from(1000, 7);
    EXPECT_EQ(stats.delivered, 0u);
    EXPECT_EQ(stats.all_delivered(), 1000u);
    EXPECT_EQ(stats.all_failures(), 7u);
    stats.settled(100, 512, start);
    stats.failed();
    EXPECT_EQ(stats.all_delivered(), 1001u);
    EXPECT_EQ(stats.all_failures(), 8u);

    stats.continue_from(1000, 8);  // saved earlier by the same writer
    EXPECT_EQ(stats.all_delivered(), 1001u) << "it never goes back";
    EXPECT_EQ(stats.all_failures(), 8u);
    stats.continue_from(1500, 8);  // another one had the destination in between
    EXPECT_EQ(stats.all_delivered(), 1500u);

    stats.reset();
    EXPECT_EQ(stats.all_delivered(), 0u);
    EXPECT_EQ(stats.all_failures(), 0u);
}

TEST(DeliveryStats, ReadersNeverWaitAndNeverSeeACounterGoBack) {
    constexpr std::uint64_t events = 50'000;
    DeliveryStats stats;
    auto read = [&] {
        std::uint64_t before = 0;
        while (before < events) {
            const std::uint64_t delivered = stats.delivered.load(std::memory_order_relaxed);
            ASSERT_GE(delivered, before);
            before = delivered;
            if (const auto latency = stats.latency.percentile(0.99)) {
                ASSERT_EQ(*latency, 7);
            }
        }
    };
    std::thread first(read), second(read);
    for (std::uint64_t i = 0; i < events; i++)
        stats.settled(7, 1, start + static_cast<Micros>(i) * milliseconds(10));
    first.join();
    second.join();
    EXPECT_EQ(stats.delivered, events);
    EXPECT_EQ(stats.bytes, events);
}

}  // namespace
}  // namespace outbox
