#include "leases.hpp"

#include <gmock/gmock.h>

#include "deliveries.hpp"

namespace inbox {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LeasesTest : public testing::Test {
  protected:
    Leases leases;

    std::vector<Delivery> under(const std::string& token, std::initializer_list<int> numbers) {
        std::vector<Delivery> deliveries;
        for (const int number : numbers) {
            deliveries.push_back(delivery("a", number));
            deliveries.back().handle = token;
        }
        return deliveries;
    }
    // Returns "t" for an ack of the lease t, and "t:2" if two events under it are nacked.
    std::vector<std::string> settlements() {
        std::vector<std::string> all;
        for (const Settlement& s : leases.settlements())
            all.push_back(s.nacked.empty() ? s.token
                                           : s.token + ":" + std::to_string(s.nacked.size()));
        leases.settlements().clear();
        return all;
    }
};

TEST_F(LeasesTest, ALeaseEndsWhenAllUnderItIsSettled) {
    leases.add("t", 3);
    leases.add("u", 1);
    leases.ack(under("t", {1, 2}));
    EXPECT_THAT(settlements(), IsEmpty());
    EXPECT_THAT(leases.tokens(), testing::UnorderedElementsAre("t", "u"));
    leases.ack(under("t", {3}));
    EXPECT_THAT(settlements(), ElementsAre("t"));
    EXPECT_THAT(leases.tokens(), ElementsAre("u"));
}

TEST_F(LeasesTest, RefusalsComeBeforeTheEndOfTheLease) {
    leases.add("t", 3);
    leases.nack(under("t", {2, 3}));
    EXPECT_THAT(settlements(), ElementsAre("t:2"));
    leases.ack(under("t", {1}));
    EXPECT_THAT(settlements(), ElementsAre("t"));
}

TEST_F(LeasesTest, OneNackMayConcernSeveralLeases) {
    leases.add("t", 1);
    leases.add("u", 2);
    std::vector<Delivery> both = under("t", {1});
    for (const Delivery& one : under("u", {2, 3}))
        both.push_back(one);
    leases.nack(both);
    EXPECT_THAT(settlements(), ElementsAre("t:1", "t", "u:2", "u"));
}

TEST_F(LeasesTest, UnknownHandlesAreIgnored) {
    leases.add("t", 1);
    leases.forget("t");
    leases.ack(under("t", {1}));
    leases.nack(under("x", {1}));
    EXPECT_THAT(settlements(), IsEmpty());
}

}  // namespace
}  // namespace inbox
