// Messages that may be handed out after an earlier one of their key was given back.
#include "pubsub/key_order.hpp"

#include <gtest/gtest.h>

namespace inbox::pubsub {
namespace {

TEST(KeyOrder, NothingIsHeldBackWithoutAReason) {
    KeyOrder order;
    order.given_back("a", "1");
    EXPECT_TRUE(order.may_pass("b", "2"));
    EXPECT_TRUE(order.may_pass("", "3"));
}

TEST(KeyOrder, WithoutAKeyThereIsNoOrder) {
    KeyOrder order;
    order.given_back("", "1");
    EXPECT_TRUE(order.may_pass("", "2"));
}

TEST(KeyOrder, OvertakingMessagesAreGivenBackOnce) {
    KeyOrder order;
    order.given_back("a", "1");
    order.given_back("a", "2");
    EXPECT_FALSE(order.may_pass("a", "3"));
    EXPECT_FALSE(order.may_pass("a", "4"));
    EXPECT_TRUE(order.may_pass("a", "1"));
    for (const char* id : {"2", "3", "4", "5"})
        EXPECT_TRUE(order.may_pass("a", id));
}

TEST(KeyOrder, AKeyGoesOnIfItsFirstMessageWentToAnotherConsumer) {
    KeyOrder order;
    order.given_back("a", "1");
    EXPECT_FALSE(order.may_pass("a", "2"));
    EXPECT_TRUE(order.may_pass("a", "2"));
}

TEST(KeyOrder, DoesNotGrowWithoutBound) {
    KeyOrder order;
    for (int i = 0; i < 10'001; i++)
        order.given_back("key " + std::to_string(100'000 + i), "1");
    EXPECT_TRUE(order.may_pass("key 100000", "2"));
    EXPECT_FALSE(order.may_pass("key 100001", "2"));
    EXPECT_FALSE(order.may_pass("key 110000", "2"));
}

TEST(KeyOrder, AKeyWhoseFirstMessageNeverComesIsForgotten) {
    KeyOrder order;
    order.given_back("a", "first");
    const std::string long_id(1024, 'x');
    int given_back = 0;
    while (given_back < 100'000 && !order.may_pass("a", long_id + std::to_string(given_back)))
        given_back++;
    EXPECT_GT(given_back, 1000);
    EXPECT_LT(given_back, 100'000);
}

}  // namespace
}  // namespace inbox::pubsub
