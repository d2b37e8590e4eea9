// Settlements: when they are sent, in which pieces, and when they are repeated.
#include "pubsub/settlements.hpp"

#include <gmock/gmock.h>

namespace inbox::pubsub {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

const SteadyTime start{1000h};

std::vector<std::string> ids_of(std::optional<Batch> batch) {
    return batch ? batch->ack_ids : std::vector<std::string>{"(none)"};
}

TEST(Settlements, WaitAMomentForMore) {
    Settlements settlements;
    EXPECT_EQ(settlements.due(), SteadyTime::max());
    EXPECT_TRUE(settlements.idle());
    settlements.add(Action::ack, "a", start);
    settlements.add(Action::ack, "b", start + 9ms);
    EXPECT_EQ(settlements.due(), start + 10ms);
    EXPECT_FALSE(settlements.next(start + 9ms));
    EXPECT_THAT(ids_of(settlements.next(start + 10ms)), ElementsAre("a", "b"));
}

TEST(Settlements, ExtensionsDoNotWait) {
    Settlements settlements;
    settlements.add(Action::extend, "a", start);
    EXPECT_LE(settlements.due(), start);
    EXPECT_THAT(ids_of(settlements.next(start)), ElementsAre("a"));
}

TEST(Settlements, AFullRequestWaitsForNothing) {
    Settlements settlements;
    for (std::size_t i = 0; i < Settlements::max_ids + 1; i++)
        settlements.add(Action::ack, std::to_string(i), start);
    EXPECT_LE(settlements.due(), start);
    EXPECT_EQ(ids_of(settlements.next(start)).size(), Settlements::max_ids);
    settlements.done(Action::ack);
    EXPECT_EQ(settlements.due(), start + 10ms);
    EXPECT_THAT(ids_of(settlements.next(start + 10ms)), ElementsAre("1000"));
}

TEST(Settlements, RequestsAreBoundedInBytes) {
    Settlements settlements;
    for (int i = 0; i < 10; i++)
        settlements.add(Action::extend, std::string(Settlements::max_bytes / 3, 'x'), start);
    EXPECT_EQ(ids_of(settlements.next(start)).size(), 2u);
}

TEST(Settlements, OneIdThatIsTooLargeGoesAlone) {
    Settlements settlements;
    settlements.add(Action::ack, std::string(Settlements::max_bytes * 2, 'x'), start);
    settlements.add(Action::ack, "b", start);
    EXPECT_EQ(ids_of(settlements.next(start + 10ms)).size(), 1u);
    settlements.done(Action::ack);
    EXPECT_THAT(ids_of(settlements.next(start + 10ms)), ElementsAre("b"));
}

TEST(Settlements, DeadlinesChangeOneRequestAfterTheOther) {
    Settlements settlements;
    settlements.add(Action::extend, "a", start);
    ASSERT_TRUE(settlements.next(start));
    settlements.add(Action::nack, "a", start);
    settlements.add(Action::extend, "b", start);
    EXPECT_EQ(settlements.due(), SteadyTime::max());
    EXPECT_FALSE(settlements.next(start + 1s));
    settlements.add(Action::ack, "c", start);
    EXPECT_THAT(ids_of(settlements.next(start + 1s)), ElementsAre("c")) << "concern nobody else";
    settlements.done(Action::extend);
    EXPECT_THAT(ids_of(settlements.next(start + 1s)), ElementsAre("b")) << "more urgent";
    settlements.done(Action::extend);
    EXPECT_THAT(ids_of(settlements.next(start + 1s)), ElementsAre("a"));
}

TEST(Settlements, FailedRequestsAreRepeatedAtGrowingIntervals) {
    Settlements settlements;
    settlements.add(Action::ack, "a", start);
    SteadyTime now = start + 10ms;
    std::vector<Duration> pauses;
    for (int i = 0; i < 10; i++) {
        std::optional<Batch> batch = settlements.next(now);
        ASSERT_TRUE(batch);
        settlements.done(Action::ack);
        ASSERT_TRUE(settlements.again(*batch, now, 1));
        pauses.push_back(settlements.due() - now);
        EXPECT_FALSE(settlements.next(settlements.due() - 1ms));
        now = settlements.due();
    }
    EXPECT_THAT(std::vector(pauses.begin(), pauses.begin() + 4),
                ElementsAre(200ms, 400ms, 800ms, 1600ms));
    EXPECT_EQ(pauses.back(), 30s);
}

TEST(Settlements, OtherRequestsDoNotWaitForFailedOnes) {
    Settlements settlements;
    settlements.add(Action::ack, "a", start);
    std::optional<Batch> batch = settlements.next(start + 10ms);
    settlements.done(Action::ack);
    ASSERT_TRUE(settlements.again(*batch, start + 10ms, 0));
    EXPECT_EQ(settlements.due(), start + 110ms) << "half the pause at least";
    settlements.add(Action::ack, "b", start + 10ms);
    EXPECT_THAT(ids_of(settlements.next(start + 20ms)), ElementsAre("b"));
    EXPECT_EQ(settlements.due(), SteadyTime::max()) << "one at a time";
    settlements.done(Action::ack);
    EXPECT_THAT(ids_of(settlements.next(start + 110ms)), ElementsAre("a"));
}

TEST(Settlements, AttemptsEndAfterALimit) {
    const auto gives_up_after = [](Action action) {
        Settlements settlements;
        settlements.add(action, "a", start);
        SteadyTime now = start + 10ms;
        std::optional<Batch> batch = settlements.next(now);
        while (settlements.again(*batch, now, 1)) {
            settlements.done(action);
            now = settlements.due();
            batch = settlements.next(now);
        }
        settlements.done(action);
        EXPECT_TRUE(settlements.idle());
        return now - start;
    };
    EXPECT_GE(gives_up_after(Action::ack), 10min);
    EXPECT_LE(gives_up_after(Action::ack), 11min);
    EXPECT_LE(gives_up_after(Action::extend), 2min);
}

TEST(Settlements, HurryMakesEverythingDue) {
    Settlements settlements;
    settlements.add(Action::ack, "a", start);
    std::optional<Batch> batch = settlements.next(start + 10ms);
    settlements.done(Action::ack);
    settlements.again(*batch, start + 10ms, 1);
    settlements.add(Action::nack, "b", start + 10ms);
    settlements.hurry(start + 10ms);
    EXPECT_THAT(ids_of(settlements.next(start + 10ms)), ElementsAre("a"));
    EXPECT_THAT(ids_of(settlements.next(start + 10ms)), ElementsAre("b"));
    EXPECT_FALSE(settlements.idle()) << "not before they are answered";
    settlements.done(Action::ack);
    settlements.done(Action::nack);
    EXPECT_TRUE(settlements.idle());
}

}  // namespace
}  // namespace inbox::pubsub
