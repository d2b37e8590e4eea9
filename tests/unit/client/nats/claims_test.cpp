#include "nats/claims.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inbox::nats {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

constexpr outbox::Micros ack_wait = outbox::seconds(30);

std::string subject(int sequence, int delivered = 1) {
    return "$JS.ACK.S.C." + std::to_string(delivered) + '.' + std::to_string(sequence) + ".1.1.0";
}

Delivery message(int sequence, const std::string& key, int delivered = 1) {
    Delivery delivery;
    delivery.event.ordering_key = key;
    delivery.message_id = std::to_string(sequence);
    delivery.handle = subject(sequence, delivered);
    return delivery;
}

std::vector<std::string> ids(const std::vector<Delivery>& deliveries) {
    std::vector<std::string> found;
    for (const Delivery& one : deliveries)
        found.push_back(one.message_id);
    return found;
}

std::vector<std::string> sent(Claims& claims, outbox::Micros now) {
    std::vector<std::string> found;
    for (const Claims::Command& one : claims.next(now))
        found.push_back(one.body + ' ' + one.subject);
    return found;
}

TEST(NatsClaims, MessagesAreHeldUntilTheyAreSettled) {
    Claims claims;
    claims.set_ack_wait(ack_wait);
    claims.add(message(1, "a"), 0);
    claims.add(message(2, ""), 0);
    EXPECT_EQ(claims.deadline(), ack_wait / 2);
    const std::vector<Delivery> taken = claims.take(1);
    EXPECT_THAT(ids(taken), ElementsAre("1"));
    EXPECT_THAT(sent(claims, ack_wait / 2),
                ElementsAre("+WPI " + subject(1), "+WPI " + subject(2)));
    EXPECT_EQ(claims.deadline(), ack_wait);
    claims.ack(taken);
    EXPECT_EQ(claims.deadline(), 0);
    EXPECT_THAT(sent(claims, ack_wait / 2), ElementsAre("+ACK " + subject(1)));
    EXPECT_THAT(sent(claims, ack_wait), ElementsAre("+WPI " + subject(2)));
    EXPECT_EQ(claims.held(), 1u);
}

TEST(NatsClaims, AHeldMessageThatComesAgainIsHandedOutOnce) {
    Claims claims;
    claims.add(message(1, "a"), 0);
    const std::vector<Delivery> taken = claims.take(10);
    claims.add(message(1, "a", 2), 0);
    EXPECT_THAT(claims.take(10), IsEmpty());
    claims.ack(taken);
    EXPECT_THAT(sent(claims, 0), ElementsAre("+ACK " + subject(1, 2)));
}

TEST(NatsClaims, AKeyWaitsForItsFirstMessage) {
    Claims claims;
    claims.set_ack_wait(ack_wait);
    for (int i = 1; i <= 3; i++)
        claims.add(message(i, "a"), 0);
    claims.add(message(4, "b"), 0);
    claims.nack(claims.take(2), 0);
    EXPECT_THAT(sent(claims, 0),
                ElementsAre("-NAK " + subject(1), "-NAK " + subject(2), "-NAK " + subject(3)));
    EXPECT_THAT(ids(claims.take(10)), ElementsAre("4"));
    claims.add(message(5, "a"), 0);
    claims.add(message(2, "a", 2), 0);
    EXPECT_THAT(claims.take(10), IsEmpty());
    EXPECT_THAT(sent(claims, 0),
                ElementsAre(StartsWith("-NAK {\"delay\""), StartsWith("-NAK {\"delay\"")));
    for (const int sequence : {1, 2, 3, 5, 6})
        claims.add(message(sequence, "a", 2), 0);
    EXPECT_THAT(ids(claims.take(10)), ElementsAre("1", "2", "3", "5", "6"));
}

TEST(NatsClaims, AMessageThatNeverComesAgainIsNotWaitedForForever) {
    Claims claims;
    claims.set_ack_wait(ack_wait);
    claims.add(message(1, "a"), 0);
    claims.nack(claims.take(1), 0);
    claims.add(message(2, "a"), 2 * ack_wait - 1);
    EXPECT_THAT(claims.take(10), IsEmpty());
    claims.add(message(3, "a"), 5 * ack_wait);
    EXPECT_THAT(ids(claims.take(10)), ElementsAre("3"));
}

TEST(NatsClaims, NothingIsSentAboutMessagesOfAnEarlierConsumer) {
    Claims claims;
    for (int i = 1; i <= 3; i++)
        claims.add(message(i, "a"), 0);
    const std::vector<Delivery> old = claims.take(2);
    claims.ack(std::span(old).first(1));
    claims.consumer_was_replaced();
    EXPECT_THAT(sent(claims, outbox::seconds(1000)), IsEmpty());
    claims.nack(std::span(old).subspan(1), 0);
    EXPECT_THAT(ids(claims.take(10)), ElementsAre("2", "3"));
    claims.ack(std::span(old).subspan(1));
    EXPECT_THAT(sent(claims, outbox::seconds(1000)), IsEmpty());
}

TEST(NatsClaims, WhatCouldNotBeSentIsSentFirst) {
    Claims claims;
    claims.add(message(1, "a"), 0);
    claims.add(message(2, "b"), 0);
    claims.ack(claims.take(1));
    std::vector<Claims::Command> commands = claims.next(outbox::seconds(15));
    EXPECT_EQ(commands.size(), 2u);
    claims.ack(claims.take(1));
    claims.again(std::move(commands));  // asking for more time is not repeated
    EXPECT_THAT(sent(claims, 0), ElementsAre("+ACK " + subject(1), "+ACK " + subject(2)));
}

TEST(NatsClaims, AtTheEndEverythingIsGivenBack) {
    Claims claims;
    for (int i = 1; i <= 3; i++)
        claims.add(message(i, "a"), 0);
    claims.take(1);
    claims.give_back_all();
    EXPECT_THAT(sent(claims, 0),
                ElementsAre("-NAK " + subject(1), "-NAK " + subject(2), "-NAK " + subject(3)));
    EXPECT_EQ(claims.held(), 0u);
    EXPECT_EQ(claims.buffered(), 0u);
    EXPECT_EQ(claims.deadline(), outbox::never);
}

TEST(NatsClaims, BytesAreThoseOfMessagesThatWait) {
    Claims claims;
    for (int sequence : {1, 2, 3}) {
        Delivery delivery = message(sequence, "a");
        delivery.size = 100;
        claims.add(std::move(delivery), 0);
    }
    EXPECT_EQ(claims.buffered_bytes(), 300u);
    const std::vector<Delivery> taken = claims.take(1);
    EXPECT_EQ(claims.buffered_bytes(), 200u);
    claims.nack(taken, 0);  // and those behind it
    EXPECT_EQ(claims.buffered_bytes(), 0u);
}

}  // namespace
}  // namespace inbox::nats
