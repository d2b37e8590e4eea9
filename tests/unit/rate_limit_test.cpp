// So many at once, and then one per period.
#include "core/rate_limit.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

TEST(RateLimit, TakesSomeAtOnceAndOnePerPeriodAfterThat) {
    RateLimit limit(3, seconds(10));
    const Micros start = seconds(1'000'000);
    for (int i = 0; i < 3; i++)
        EXPECT_TRUE(limit.take(start));
    EXPECT_FALSE(limit.take(start));
    EXPECT_FALSE(limit.take(start + seconds(9)));
    EXPECT_EQ(limit.left_out(), 2u);
    EXPECT_EQ(limit.left_out(), 0u);
    EXPECT_TRUE(limit.take(start + seconds(10)));
    EXPECT_FALSE(limit.take(start + seconds(11)));
    for (int i = 0; i < 3; i++)
        EXPECT_TRUE(limit.take(start + seconds(1000)));
    EXPECT_FALSE(limit.take(start + seconds(1000)));
}

}  // namespace
}  // namespace outbox
