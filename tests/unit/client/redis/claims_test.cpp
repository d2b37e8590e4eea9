#include "redis/claims.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inbox::redis {
namespace {

using outbox::seconds;
using outbox::StreamId;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr outbox::Micros interval = seconds(20);

StreamId id(std::uint64_t number) {
    return {number, 0};
}

void add(Claims& claims, std::uint64_t number, outbox::Micros now = 0) {
    Delivery delivery;
    delivery.message_id = std::to_string(number);
    delivery.size = number;
    claims.add(id(number), std::move(delivery), now);
}

std::vector<Delivery> take(Claims& claims, std::size_t most = 100) {
    std::vector<Delivery> taken;
    claims.take(most, taken);
    return taken;
}

std::vector<std::string> ids(const std::vector<Delivery>& deliveries) {
    std::vector<std::string> found;
    for (const Delivery& one : deliveries)
        found.push_back(one.message_id);
    return found;
}

TEST(RedisClaims, AreHandedOutInTheOrderOfIds) {
    Claims claims(interval);
    for (const std::uint64_t number : {5, 7, 3, 9})
        add(claims, number);
    EXPECT_EQ(claims.waiting_bytes(), 24u);
    EXPECT_THAT(ids(take(claims, 3)), ElementsAre("3", "5", "7"));
    EXPECT_EQ(claims.waiting(), 1u);
    EXPECT_EQ(claims.waiting_bytes(), 9u);
    EXPECT_EQ(claims.held(), 4u);
}

TEST(RedisClaims, WhatIsGivenBackComesBeforeLaterOnes) {
    Claims claims(interval);
    for (const std::uint64_t number : {1, 2, 3})
        add(claims, number);
    const std::vector<Delivery> taken = take(claims, 2);
    claims.nack(1, id(2), taken[1]);
    claims.nack(1, id(1), taken[0]);
    claims.nack(1, id(1), taken[0]);
    EXPECT_THAT(ids(take(claims)), ElementsAre("1", "2", "3"));
    EXPECT_EQ(claims.waiting_bytes(), 0u);
}

TEST(RedisClaims, AHeldEntryThatComesAgainIsHandedOutOnce) {
    Claims claims(interval);
    add(claims, 1);
    take(claims);
    add(claims, 1, seconds(5));
    EXPECT_THAT(take(claims), IsEmpty());
    EXPECT_EQ(claims.next_extension(), seconds(5) + interval) << "Redis has just extended it";
    claims.ack(id(1));
    add(claims, 1);
    EXPECT_THAT(take(claims), IsEmpty()) << "the acknowledgement is on its way";
    claims.confirmed(claims.next_acks(10));
    add(claims, 1);
    EXPECT_THAT(ids(take(claims)), ElementsAre("1"));
}

TEST(RedisClaims, AnAcknowledgementIsRepeatedUntilItIsConfirmed) {
    Claims claims(interval);
    for (const std::uint64_t number : {1, 2, 3})
        add(claims, number);
    take(claims);
    for (const std::uint64_t number : {1, 2, 3})
        claims.ack(id(number));
    claims.ack(id(1));
    const Claims::Ids sent = claims.next_acks(2);
    EXPECT_THAT(sent, ElementsAre(id(1), id(2)));
    claims.again(sent);
    EXPECT_THAT(claims.next_acks(10), ElementsAre(id(1), id(2), id(3)));
    EXPECT_FALSE(claims.has_acks());
}

TEST(RedisClaims, ClaimsAreExtendedTogether) {
    Claims claims(interval);
    add(claims, 1);
    add(claims, 2, seconds(2));
    add(claims, 3, seconds(9));
    EXPECT_THAT(claims.next_extensions(10, interval - 1), IsEmpty());
    EXPECT_THAT(claims.next_extensions(10, interval), ElementsAre(id(1), id(2)));
    EXPECT_EQ(claims.next_extension(), seconds(9) + interval);
    claims.extended({id(1), id(2)}, seconds(25));
    EXPECT_THAT(claims.next_extensions(10, seconds(29)), ElementsAre(id(3)));
    EXPECT_EQ(claims.next_extension(), seconds(25) + interval) << "after the answer";
    claims.ack(id(3));
    claims.extended({id(3)}, seconds(30));
    EXPECT_EQ(claims.next_extension(), seconds(25) + interval);
    EXPECT_EQ(claims.least_age(), seconds(18)) << "of the second one";
}

TEST(RedisClaims, WhatIsLostIsNotHandedOutAgain) {
    Claims claims(interval);
    for (const std::uint64_t number : {1, 2, 3})
        add(claims, number);
    const std::vector<Delivery> taken = take(claims, 1);
    claims.lost({id(1), id(2)});
    claims.nack(1, id(1), taken[0]);
    EXPECT_THAT(ids(take(claims)), ElementsAre("3"));
    claims.ack(id(1));  // the effect is there, whoever has the entry
    EXPECT_THAT(claims.next_acks(10), ElementsAre(id(1)));
}

TEST(RedisClaims, WhatNobodyElseCanGetStaysUntilItIsAcknowledged) {
    Claims claims(interval);
    for (const std::uint64_t number : {1, 2})
        add(claims, number);
    const std::vector<Delivery> taken = take(claims, 1);
    claims.next_extensions(10, interval);
    claims.keep({id(1), id(2), id(3)});
    claims.keep({id(1)});
    EXPECT_EQ(claims.next_extension(), outbox::never);
    EXPECT_EQ(claims.last_copies(), 2u);
    claims.nack(1, id(1), taken[0]);
    EXPECT_THAT(ids(take(claims)), ElementsAre("1", "2"));
    claims.ack(1, id(1));
    claims.ack(1, id(2));
    EXPECT_EQ(claims.last_copies(), 0u);
    EXPECT_EQ(claims.held(), 0u);
}

TEST(RedisClaims, IdsOfAGroupThatWasMadeAgainAreOtherEntries) {
    Claims claims(interval);
    for (const std::uint64_t number : {1, 2, 3})
        add(claims, number);
    const std::vector<Delivery> old = take(claims, 2);
    claims.ack(1, id(1));
    claims.begin_generation();
    EXPECT_EQ(claims.generation(), 2u);
    EXPECT_FALSE(claims.has_acks()) << "it would acknowledge another entry";
    add(claims, 1);
    EXPECT_EQ(claims.waiting(), 2u);
    claims.ack(1, id(1));
    claims.nack(1, id(2), old[1]);
    EXPECT_EQ(claims.waiting_bytes(), 6u);
    EXPECT_THAT(ids(take(claims)), ElementsAre("2", "3", "1"));
    claims.ack(2, id(1));
    EXPECT_THAT(claims.next_acks(10), ElementsAre(id(1)));
    EXPECT_EQ(claims.waiting_bytes(), 0u);
}

TEST(RedisClaims, AtTheEndEverythingIsGivenBackThatIsNotAcknowledged) {
    Claims claims(interval);
    for (const std::uint64_t number : {1, 2, 3})
        add(claims, number);
    take(claims, 2);
    claims.ack(id(1));
    EXPECT_THAT(claims.give_back_all(), ElementsAre(id(2), id(3)));
    EXPECT_EQ(claims.held(), 0u);
    EXPECT_EQ(claims.waiting_bytes(), 0u);
    EXPECT_EQ(claims.next_extension(), outbox::never);
    EXPECT_THAT(claims.next_acks(10), ElementsAre(id(1)));
}

}  // namespace
}  // namespace inbox::redis
