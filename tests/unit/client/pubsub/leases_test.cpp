// The length of leases, and the times of their extensions.
#include "pubsub/leases.hpp"

#include <gmock/gmock.h>

namespace inbox::pubsub {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

const SteadyTime start{1000h};

TEST(AckTimes, KnowsTheTimeThat99PercentDidNotExceed) {
    AckTimes times;
    EXPECT_EQ(times.p99(), 0s);
    for (int i = 0; i < 99; i++)
        times.add(4500ms);
    EXPECT_EQ(times.p99(), 5s);
    times.add(300s);
    EXPECT_EQ(times.p99(), 5s) << "one in a hundred";
    times.add(300s);
    EXPECT_EQ(times.p99(), 300s);
}

TEST(AckTimes, CountsTimesBeyondItsRange) {
    AckTimes times;
    times.add(-5s);
    EXPECT_EQ(times.p99(), 0s);
    times.add(5h);
    EXPECT_EQ(times.p99(), 600s);
}

TEST(AckTimes, ForgetsOldTimes) {
    AckTimes times;
    for (int i = 0; i < 9'000; i++)
        times.add(100s);
    int needed = 0;
    while (times.p99() == 100s) {
        times.add(1s);
        ASSERT_LT(++needed, 100'000);
    }
    EXPECT_LT(needed, 50'000) << "without forgetting it would be 891,000";
    EXPECT_EQ(times.p99(), 1s);
}

TEST(Leases, AreAsLongAsMessagesTakeWithinBounds) {
    Leases leases({.min_deadline = 10s, .max_deadline = 120s});
    const auto deadline_after = [&](Duration time) {
        for (int i = 0; i < 1000; i++) {
            leases.add("a", start, 0);
            EXPECT_TRUE(leases.acked("a", start + time));
        }
        return leases.deadline();
    };
    EXPECT_EQ(leases.deadline(), 10s);
    EXPECT_EQ(deadline_after(2s), 10s);
    EXPECT_EQ(deadline_after(40s), 40s);
    EXPECT_EQ(deadline_after(500s), 120s);
}

TEST(Leases, AreLongerWhereDeliveryIsExactlyOnce) {
    Leases leases({});
    leases.set_exactly_once(true);
    EXPECT_EQ(leases.deadline(), 60s);
    leases.set_exactly_once(false);
    EXPECT_EQ(leases.deadline(), 10s);
    Leases bounded({.min_deadline = 10s, .max_deadline = 20s});
    bounded.set_exactly_once(true);
    EXPECT_EQ(bounded.deadline(), 20s);
}

TEST(Leases, AreExtendedInTheMiddle) {
    for (const double part : {0.0, 0.5, 1.0}) {
        Leases leases({.min_deadline = 30s});
        EXPECT_EQ(leases.next_round(), SteadyTime::max());
        leases.add("a", start, part);
        const auto pause = leases.next_round() - start;
        EXPECT_GE(pause, 10s);
        EXPECT_LE(pause, 20s);
        const Leases::Round round = leases.begin_round(leases.next_round(), part);
        EXPECT_THAT(round.extend, ElementsAre("a"));
        EXPECT_EQ(leases.next_round(), start + 2 * pause);
    }
}

TEST(Leases, ARoundIsInTimeForTheShortestOfThem) {
    Leases leases({});
    leases.set_exactly_once(true);
    leases.add("long", start, 1);
    EXPECT_EQ(leases.next_round(), start + 40s);
    leases.set_exactly_once(false);
    leases.add("short", start, 0.5);
    EXPECT_EQ(leases.next_round(), start + 5s);
    leases.set_exactly_once(true);
    leases.add("another long", start, 1);
    EXPECT_EQ(leases.next_round(), start + 5s);
}

TEST(Leases, AllHeldLeasesAreExtended) {
    Leases leases({});
    for (const char* ack_id : {"a", "b", "c", "d"})
        leases.add(ack_id, start, 0);
    EXPECT_THAT(leases.all(), ElementsAre("a", "b", "c", "d"));
    EXPECT_TRUE(leases.acked("b", start));
    EXPECT_FALSE(leases.acked("b", start));
    EXPECT_TRUE(leases.remove("c"));
    EXPECT_FALSE(leases.remove("c"));
    EXPECT_THAT(leases.begin_round(start + 5s, 0).extend, UnorderedElementsAre("a", "d"));
    leases.remove("a");
    leases.remove("d");
    EXPECT_THAT(leases.begin_round(start + 10s, 0).extend, IsEmpty());
    EXPECT_EQ(leases.next_round(), SteadyTime::max());
}

TEST(Leases, EndAfterTheirLimit) {
    Leases leases({.max_lease = 60s});
    leases.add("a", start, 0);
    leases.add("b", start + 30s, 0);
    EXPECT_EQ(leases.begin_round(start + 59s, 0).expired, 0u);
    const Leases::Round round = leases.begin_round(start + 60s, 0);
    EXPECT_EQ(round.expired, 1u);
    EXPECT_THAT(round.extend, ElementsAre("b"));
    EXPECT_EQ(leases.begin_round(start + 61s, 0).expired, 0u) << "counted once";
    EXPECT_TRUE(leases.acked("a", start + 70s)) << "it may still be in time";
}

}  // namespace
}  // namespace inbox::pubsub
