#include "sqs/claims.hpp"

#include <gmock/gmock.h>

namespace inbox::sqs {

using outbox::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using Answer = Claims::Answer;
using Change = Claims::Change;

static constexpr outbox::Micros visibility = seconds(60);

static Delivery message(const std::string& handle, const std::string& key = "") {
    Delivery delivery;
    delivery.handle = handle;
    delivery.event.ordering_key = key;
    return delivery;
}

static std::vector<Delivery> messages(int count, const std::string& key = "") {
    std::vector<Delivery> made;
    for (int i = 0; i < count; i++)
        made.push_back(message(std::to_string(i), key));
    return made;
}

static std::vector<std::string> handles(const std::vector<Delivery>& deliveries) {
    std::vector<std::string> taken;
    for (const Delivery& delivery : deliveries)
        taken.push_back(delivery.handle);
    return taken;
}

// Takes all requests that are due now, and answers each entry with `answer`.
static std::vector<std::vector<std::string>> sent(Claims& claims, Change change, outbox::Micros now,
                                                  Answer answer = Answer::done) {
    std::vector<std::vector<std::string>> batches;
    std::vector<Claims::Batch> under_way;
    while (auto batch = claims.next(now)) {
        EXPECT_EQ(batch->change, change);
        batches.push_back(batch->handles);
        under_way.push_back(std::move(*batch));
    }
    for (const Claims::Batch& batch : under_way)
        claims.settle(batch, std::vector(batch.handles.size(), answer), now);
    return batches;
}

TEST(SqsClaims, HandsOutMessagesInOrderOfReceipt) {
    Claims claims(false, visibility);
    claims.add(messages(3), 0);
    EXPECT_EQ(claims.buffered(), 3u);
    EXPECT_THAT(handles(claims.take(2)), ElementsAre("0", "1"));
    EXPECT_THAT(handles(claims.take(2)), ElementsAre("2"));
    EXPECT_THAT(claims.take(2), IsEmpty());
}

TEST(SqsClaims, ExtendsClaimsAfterHalfTheirTime) {
    Claims claims(false, visibility);
    claims.add(messages(2), 0);
    claims.take(1);
    EXPECT_EQ(claims.deadline(), seconds(30));
    EXPECT_FALSE(claims.next(seconds(30) - 1));
    EXPECT_THAT(sent(claims, Change::extend, seconds(30)), ElementsAre(ElementsAre("0", "1")));
    EXPECT_EQ(claims.deadline(), seconds(60));
    claims.ack(std::vector{message("0")}, seconds(40));
    EXPECT_THAT(sent(claims, Change::remove, seconds(40)), SizeIs(1));
    EXPECT_THAT(sent(claims, Change::extend, seconds(60)), ElementsAre(ElementsAre("1")));
}

TEST(SqsClaims, FillsRequestsWithClaimsThatAreDueSoon) {
    Claims claims(false, visibility);
    for (int i = 0; i < 12; i++)
        claims.add({message(std::to_string(i))}, seconds(i));
    // Includes claims that are due within an eighth of the visibility timeout.
    EXPECT_THAT(sent(claims, Change::extend, seconds(30)), ElementsAre(SizeIs(8)));
    EXPECT_EQ(claims.deadline(), seconds(38));
}

TEST(SqsClaims, RepeatsAnExtensionThatFailedUntilItIsTooLate) {
    Claims claims(false, visibility);
    claims.add(messages(1), 0);
    EXPECT_THAT(sent(claims, Change::extend, seconds(30), Answer::failed), SizeIs(1));
    const outbox::Micros again = claims.deadline();
    EXPECT_GT(again, seconds(30));
    EXPECT_LT(again, seconds(40));

    const auto late = claims.next(again);
    ASSERT_TRUE(late);
    EXPECT_EQ(claims.settle(*late, {}, seconds(60)), 1u);
    EXPECT_EQ(claims.deadline(), outbox::never);
}

TEST(SqsClaims, ForgetsLostMessages) {
    Claims claims(false, visibility);
    claims.add(messages(2), 0);
    const auto batch = claims.next(seconds(30));
    EXPECT_EQ(claims.settle(*batch, {Answer::lost, Answer::done}, seconds(30)), 1u);
    EXPECT_THAT(sent(claims, Change::extend, seconds(60)), ElementsAre(ElementsAre("1")));
}

TEST(SqsClaims, DeletesTenAtATime) {
    Claims claims(false, visibility);
    claims.add(messages(23), 0);
    claims.ack(claims.take(23), 0);
    EXPECT_FALSE(claims.is_settled());
    EXPECT_THAT(sent(claims, Change::remove, 0), ElementsAre(SizeIs(10), SizeIs(10), SizeIs(3)));
    EXPECT_TRUE(claims.is_settled());
    EXPECT_EQ(claims.deadline(), outbox::never);
}

TEST(SqsClaims, RepeatsOnlyFailedEntries) {
    Claims claims(false, visibility);
    claims.add(messages(3), 0);
    claims.ack(claims.take(3), 0);
    const auto batch = claims.next(0);
    EXPECT_FALSE(claims.is_settled());
    EXPECT_EQ(claims.settle(*batch, {Answer::failed, Answer::lost, Answer::done}, 1), 1u);
    EXPECT_FALSE(claims.is_settled());
    EXPECT_THAT(sent(claims, Change::remove, 2), ElementsAre(ElementsAre("0")));
    EXPECT_TRUE(claims.is_settled());
}

TEST(SqsClaims, DoesNotRepeatDeletionsOfMessagesThatComeAgain) {
    Claims claims(false, visibility);
    claims.add(messages(1), 0);
    claims.ack(claims.take(1), seconds(59));
    const auto batch = claims.next(seconds(59));
    EXPECT_EQ(claims.settle(*batch, {}, seconds(60)), 1u);
    EXPECT_TRUE(claims.is_settled());
}

TEST(SqsClaims, GivesBackLaterMessagesOfTheGroup) {
    Claims claims(true, visibility);
    claims.add({message("a1", "a"), message("b1", "b"), message("a2", "a"), message("c1"),
                message("a3", "a"), message("c2")},
               0);
    const auto taken = claims.take(3);  // a1, b1, a2
    claims.nack(std::vector{taken[0], taken[2]}, 0);
    EXPECT_THAT(sent(claims, Change::release, 0), ElementsAre(ElementsAre("a1", "a2", "a3")));
    EXPECT_THAT(handles(claims.take(9)), ElementsAre("c1", "c2"));
}

TEST(SqsClaims, GivesBackOneRequestAtATimeIfOrderMatters) {
    for (const bool order : {true, false}) {
        Claims claims(order, visibility);
        claims.add(messages(12, "a"), 0);
        claims.nack(claims.take(12), 0);
        const auto first = claims.next(0);
        ASSERT_TRUE(first);
        EXPECT_THAT(first->handles, SizeIs(10));
        const auto second = claims.next(0);
        EXPECT_EQ(second.has_value(), !order);
        claims.settle(*first, {}, 1);  // failed: the same handles are due again
        if (order) {
            const auto again = claims.next(1);
            ASSERT_TRUE(again);
            EXPECT_EQ(again->handles, first->handles);
        }
    }
}

// An extension that arrives after the release would hide the message again.
TEST(SqsClaims, GivesNothingBackWhileItIsBeingExtended) {
    Claims claims(true, visibility);
    claims.add(messages(1, "a"), 0);
    const auto extension = claims.next(seconds(30));
    ASSERT_TRUE(extension);
    claims.nack(claims.take(1), seconds(31));
    EXPECT_FALSE(claims.next(seconds(31)));
    EXPECT_FALSE(claims.is_settled());
    claims.settle(*extension, {Answer::done}, seconds(32));
    EXPECT_THAT(sent(claims, Change::release, seconds(32)), ElementsAre(ElementsAre("0")));
}

TEST(SqsClaims, GivesBackAllInTheOrderOfReceipt) {
    Claims claims(true, visibility);
    claims.add({message("z", "a"), message("y", "a"), message("x", "a")}, 0);
    claims.take(1);
    claims.give_back_all(0);
    EXPECT_EQ(claims.buffered(), 0u);
    EXPECT_THAT(sent(claims, Change::release, 0), ElementsAre(ElementsAre("z", "y", "x")));
    EXPECT_TRUE(claims.is_settled());
}

TEST(SqsClaims, DeletesMessagesThatItNeverHeld) {
    Claims claims(false, visibility);
    claims.ack(std::vector{message("of before")}, 0);
    EXPECT_THAT(sent(claims, Change::remove, 0), ElementsAre(ElementsAre("of before")));
}

}  // namespace inbox::sqs
