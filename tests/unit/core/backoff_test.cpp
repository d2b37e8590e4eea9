#include "core/backoff.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace outbox {
namespace {

std::vector<Micros> delays(Backoff& backoff, std::size_t count) {
    std::vector<Micros> delays(count);
    std::generate(delays.begin(), delays.end(), [&] { return backoff.next(); });
    return delays;
}

Micros longest(const std::vector<Micros>& delays) {
    return *std::max_element(delays.begin(), delays.end());
}

TEST(Backoff, EachDelayLiesBetweenNothingAndItsCeiling) {
    for (std::uint64_t seed = 0; seed < 2'000; seed++) {
        Backoff backoff(1'000, 50'000, seed);
        Micros ceiling = 1'000;
        for (int step = 0; step < 12; step++) {
            const Micros delay = backoff.next();
            ASSERT_GE(delay, 1) << "seed " << seed << ", step " << step;
            ASSERT_LE(delay, ceiling) << "seed " << seed << ", step " << step;
            ceiling = std::min<Micros>(50'000, ceiling * 2);
        }
    }
}

TEST(Backoff, CeilingDoublesWithEveryStep) {
    std::vector<Micros> longest_of_step(8);
    for (std::uint64_t seed = 1; seed <= 2'000; seed++) {
        Backoff backoff(1'000, 1'000'000, seed * 0x9e3779b97f4a7c15);
        for (Micros& longest : longest_of_step)
            longest = std::max(longest, backoff.next());
    }
    for (std::size_t step = 0; step < longest_of_step.size(); step++)
        EXPECT_GT(longest_of_step[step], (1'000 << step) * 95 / 100) << "step " << step;
}

TEST(Backoff, JitterFillsTheWholeRangeEvenly) {
    constexpr Micros cap = 1'000'000;
    Backoff backoff(cap, cap, 42);
    const std::vector<Micros> sample = delays(backoff, 10'000);
    const auto [shortest, longest] = std::minmax_element(sample.begin(), sample.end());
    const double mean = std::accumulate(sample.begin(), sample.end(), 0.0) / 10'000;
    EXPECT_LT(*shortest, cap / 100);
    EXPECT_GT(*longest, cap * 99 / 100);
    EXPECT_NEAR(mean, cap / 2, cap / 50);
}

TEST(Backoff, NeverExceedsItsCap) {
    Backoff backoff(1'000, 7'000, 3);
    const std::vector<Micros> sample = delays(backoff, 1'000);
    EXPECT_LE(longest(sample), 7'000);
    EXPECT_GT(longest(sample), 6'500);
}

TEST(Backoff, ABaseAboveTheCapIsTheCap) {
    Backoff backoff(10'000, 500, 3);
    EXPECT_LE(longest(delays(backoff, 1'000)), 500);
}

TEST(Backoff, CountsItsStepsUpToTheCap) {
    Backoff backoff(1'000, 4'000, 1);
    EXPECT_EQ(backoff.steps(), 0u);
    delays(backoff, 1);
    EXPECT_EQ(backoff.steps(), 1u);
    delays(backoff, 1'000);
    EXPECT_EQ(backoff.steps(), 2u) << "the third delay was at the cap already";
}

TEST(Backoff, StartsOverAfterAReset) {
    Backoff backoff(1'000, 1'000'000'000, 5);
    for (int i = 0; i < 100; i++) {
        delays(backoff, 20);
        backoff.reset();
        EXPECT_EQ(backoff.steps(), 0u);
        ASSERT_LE(backoff.next(), 1'000);
        ASSERT_LE(backoff.next(), 2'000);
    }
}

TEST(Backoff, NewLimitsKeepTheStepsTaken) {
    Backoff backoff(1'000, 1'000'000, 5);
    delays(backoff, 5);
    backoff.set_limits(10'000, 10'000'000);
    EXPECT_EQ(backoff.steps(), 5u);
    EXPECT_LE(backoff.next(), 320'000);
    backoff.set_limits(10, 20);
    EXPECT_LE(longest(delays(backoff, 100)), 20);
}

TEST(Backoff, ADelayIsNeverZero) {
    Backoff backoff(0, 0, 5);
    EXPECT_EQ(longest(delays(backoff, 100)), 1);
}

TEST(Backoff, StaysLongHoweverManyStepsItTook) {
    Backoff backoff(1'000, seconds(30), 9);
    delays(backoff, 100'000);
    EXPECT_GT(longest(delays(backoff, 100)), seconds(20));
}

TEST(Backoff, DoublingDoesNotOverflowBelowAnyCap) {
    for (Micros base : {Micros{1}, milliseconds(100), never / 2, never}) {
        Backoff backoff(base, never, 9);
        delays(backoff, 200);
        EXPECT_GT(longest(delays(backoff, 100)), never / 4) << "base " << base;
    }
}

TEST(Backoff, RelaysWithDifferentSeedsDoNotKeepStep) {
    Backoff a(seconds(1), seconds(30), 2), b(seconds(1), seconds(30), 4);
    EXPECT_NE(delays(a, 10), delays(b, 10));
}

TEST(RandomSeed, DiffersFromCallToCall) {
    EXPECT_NE(random_seed(), random_seed());
}

}  // namespace
}  // namespace outbox
