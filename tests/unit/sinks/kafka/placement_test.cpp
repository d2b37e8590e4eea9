// Partitions of keys while a topic grows.
#include "sinks/kafka/placement.hpp"

#include <gtest/gtest.h>

#include <string>

namespace outbox {
namespace {

class Placed : public testing::Test {
  protected:
    std::int32_t of(const std::string& key, std::int32_t partitions) {
        return placement_.choose(nullptr, key.data(), key.size(), partitions);
    }
    static std::int32_t murmur2(const std::string& key, std::int32_t partitions) {
        return rd_kafka_msg_partitioner_murmur2_random(nullptr, key.data(), key.size(), partitions,
                                                       nullptr, nullptr);
    }

    Placement placement_{"murmur2_random"};
};

TEST_F(Placed, ABatchKeepsTheNumberOfPartitionsThatItBeganWith) {
    for (int n = 0; n < 100; n++) {
        const std::string key = "key-" + std::to_string(n);
        placement_.begin_batch();
        EXPECT_EQ(of(key, 4), murmur2(key, 4));
        EXPECT_EQ(of(key, 40), murmur2(key, 4)) << "the first one may still be on its way";
        placement_.begin_batch();
        EXPECT_EQ(of(key, 40), murmur2(key, 40));
    }
}

TEST_F(Placed, NoRecordGoesToAPartitionThatIsGone) {
    EXPECT_LT(of("a", 40), 40);
    for (int n = 0; n < 100; n++)
        EXPECT_LT(of("key-" + std::to_string(n), 2), 2);
}

}  // namespace
}  // namespace outbox
