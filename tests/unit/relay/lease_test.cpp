// When a process may send.
#include "relay/serve/lease.hpp"

#include <gtest/gtest.h>

namespace outbox::relay {
namespace {

TEST(Lease, HoldsOnlyAfterARenewal) {
    Lease lease(seconds(15));
    EXPECT_FALSE(lease.holds(0));
    EXPECT_EQ(lease.renew_at(), 0) << "at once";
    lease.renewed(seconds(100));
    EXPECT_TRUE(lease.holds(seconds(100)));
    EXPECT_EQ(lease.renew_at(), seconds(105));
}

TEST(Lease, EndsAMarginBeforeTheDatabaseThinksSo) {
    Lease lease(seconds(15));
    lease.renewed(seconds(100));
    EXPECT_EQ(lease.margin(), seconds(2));
    EXPECT_TRUE(lease.holds(seconds(113) - 1));
    EXPECT_FALSE(lease.holds(seconds(113)));
    Lease of_two_seconds(seconds(2));
    EXPECT_EQ(of_two_seconds.margin(), milliseconds(400));
}

TEST(Lease, ARenewalMayTakeAsLongAsTheLeaseOfASession) {
    Lease lease(seconds(15));
    EXPECT_EQ(lease.renewal_time_limit(seconds(100), true), milliseconds(3750));
    lease.renewed(seconds(100));
    EXPECT_EQ(lease.renewal_time_limit(seconds(105), true), seconds(8));
    EXPECT_EQ(lease.renewal_time_limit(seconds(112), true), milliseconds(3750));
    EXPECT_EQ(lease.renewal_time_limit(seconds(105), false), milliseconds(3750));
}

TEST(Lease, ALateAnswerToAnEarlierRenewalShortensNothing) {
    Lease lease(seconds(15));
    lease.renewed(seconds(105));
    lease.renewed(seconds(100));
    EXPECT_EQ(lease.renew_at(), seconds(110));
}

TEST(Lease, ThereIsTimeForASecondAttempt) {
    const Lease lease(seconds(15));
    EXPECT_LT(lease.length() / 3 + 2 * lease.renewal_time_limit(0, false),
              lease.length() - lease.margin());
}

TEST(Lease, CanBeLost) {
    Lease lease(seconds(15));
    lease.renewed(seconds(100));
    lease.lose();
    EXPECT_FALSE(lease.holds(seconds(100)));
    lease.renewed(seconds(101));
    EXPECT_TRUE(lease.holds(seconds(101)));
}

}  // namespace
}  // namespace outbox::relay
