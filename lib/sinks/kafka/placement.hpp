// Chooses the partition of a record, if no header of the event names one.
//
// When a topic gets more partitions, the partitions of keys change. A batch therefore keeps the
// number of partitions that its first record met, and only one batch of a key is in flight. So no
// record reaches the new partition of its key before an earlier one has reached the old one.
#pragma once

#include <librdkafka/rdkafka.h>

#include <atomic>
#include <cstdint>
#include <string_view>

namespace outbox {

class Placement {
  public:
    // `partitioner` is "murmur2_random" or "consistent_random".
    explicit Placement(std::string_view partitioner) noexcept;

    void begin_batch() noexcept;

    // Called by librdkafka in any of its threads, so the members are atomics. Records of a batch
    // without a key go to one partition, chosen at random.
    std::int32_t choose(const rd_kafka_topic_t* topic, const void* key, std::size_t size,
                        std::int32_t partitions) noexcept;

  private:
    std::int32_t of_batch(std::int32_t partitions) noexcept;

    decltype(&rd_kafka_msg_partitioner_murmur2_random) function_;
    std::atomic<std::int32_t> of_batch_ = 0;    // 0 if the batch has not chosen yet
    std::atomic<std::int32_t> keyless_ = none;  // partition of records without a key
    static constexpr std::int32_t none = -1;
};

}  // namespace outbox
