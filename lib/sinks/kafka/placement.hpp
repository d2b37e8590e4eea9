// Which partition of a topic a record goes to, if no header of the event says so.
//
// When a topic gets more partitions, keys move. A batch keeps the number of partitions that its first
// record met. So none of its records arrives at the new partition of a key before one ahead of it has
// arrived at the old one, and of a key only one batch is in flight.
#pragma once

#include <librdkafka/rdkafka.h>

#include <atomic>
#include <cstdint>
#include <string_view>

namespace outbox {

class Placement {
  public:
    // `partitioner`: murmur2_random or consistent_random.
    explicit Placement(std::string_view partitioner) noexcept;

    void begin_batch() noexcept;

    // For the partitioner that librdkafka calls, in any of its threads. Records of a batch that have
    // no key go to one partition, chosen at random.
    std::int32_t choose(const rd_kafka_topic_t* topic, const void* key, std::size_t size,
                        std::int32_t partitions) noexcept;

  private:
    std::int32_t of_batch(std::int32_t partitions) noexcept;

    decltype(&rd_kafka_msg_partitioner_murmur2_random) function_;
    std::atomic<std::int32_t> of_batch_ = 0;    // 0: the batch has not chosen yet
    std::atomic<std::int32_t> keyless_ = none;  // where records without a key go
    static constexpr std::int32_t none = -1;
};

}  // namespace outbox
