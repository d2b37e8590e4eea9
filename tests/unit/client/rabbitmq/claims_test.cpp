#include "rabbitmq/claims.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/client/deliveries.hpp"

namespace inbox::rabbitmq {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Ack = Claims::Ack;

class RabbitmqClaims : public testing::Test {
  protected:
    RabbitmqClaims() { claims_.begin_channel(); }

    // Adds messages with these tags, and hands them out.
    std::vector<Delivery> hand_out(std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t tag = first; tag <= last; tag++)
            claims_.add(tag, delivery("a", static_cast<int>(tag)));
        return claims_.take(last - first + 1);
    }

    Claims claims_;
};

TEST_F(RabbitmqClaims, OneAcknowledgementCoversAllMessagesBeforeTheFirstHeldOne) {
    const std::vector<Delivery> out = hand_out(1, 6);
    for (const int i : {0, 1, 2, 4})
        claims_.ack({&out[static_cast<std::size_t>(i)], 1});
    EXPECT_THAT(claims_.take_acks(), ElementsAre(Ack{3, true}, Ack{5, false}));
    EXPECT_THAT(claims_.take_acks(), IsEmpty());
    claims_.ack({&out[3], 1});
    EXPECT_THAT(claims_.take_acks(), ElementsAre(Ack{4, false}));
    claims_.ack({&out[5], 1});
    EXPECT_THAT(claims_.take_acks(), ElementsAre(Ack{6, false}));
    EXPECT_EQ(claims_.unacknowledged(), 0u);
}

TEST_F(RabbitmqClaims, AMessageThatWaitsHoldsTheOthersBack) {
    const std::vector<Delivery> out = hand_out(1, 3);
    claims_.nack({&out[0], 1});
    claims_.ack({&out[1], 2});
    EXPECT_THAT(claims_.take_acks(), ElementsAre(Ack{2, false}, Ack{3, false}));
    EXPECT_EQ(claims_.waiting(), 1u);
}

TEST_F(RabbitmqClaims, WhatIsGivenBackComesBeforeTheOthers) {
    const std::vector<Delivery> out = hand_out(1, 3);
    claims_.add(4, delivery("a", 4));
    claims_.nack(out);
    EXPECT_THAT(message_ids(claims_.take(10)), ElementsAre("a1", "a2", "a3", "a4"));
}

TEST_F(RabbitmqClaims, NothingIsSettledTwice) {
    const std::vector<Delivery> out = hand_out(1, 2);
    claims_.ack(out);
    claims_.ack(out);
    claims_.nack(out);
    EXPECT_EQ(claims_.waiting(), 0u);
    EXPECT_THAT(claims_.take_acks(), ElementsAre(Ack{2, true}));
    claims_.nack(hand_out(3, 3));
    claims_.ack(std::vector(1, claims_.take(1).front()));
    EXPECT_THAT(claims_.take_acks(), ElementsAre(Ack{3, false}));
}

TEST_F(RabbitmqClaims, WhatWasHandedOutBeforeIsStale) {
    const std::vector<Delivery> before = hand_out(1, 2);
    claims_.begin_channel();
    const std::vector<Delivery> now = hand_out(1, 1);
    EXPECT_TRUE(claims_.is_stale(before[0]));
    EXPECT_FALSE(claims_.is_stale(now[0]));
    claims_.ack(before);
    claims_.nack(before);
    EXPECT_FALSE(claims_.has_acks());
    EXPECT_EQ(claims_.waiting(), 0u);
    EXPECT_EQ(claims_.outstanding(), 1u);
}

TEST_F(RabbitmqClaims, HandlesOfOthersAreIgnored) {
    std::vector<Delivery> out = hand_out(1, 1);
    for (const char* handle : {"", "1", "/", "1/", "1/x", "99999999999999999999/1", "1/2"}) {
        out[0].handle = handle;
        claims_.ack(out);
        EXPECT_FALSE(claims_.has_acks()) << handle;
    }
}

}  // namespace
}  // namespace inbox::rabbitmq
