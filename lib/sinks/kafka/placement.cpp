#include "sinks/kafka/placement.hpp"

#include <algorithm>

namespace outbox {

Placement::Placement(std::string_view partitioner) noexcept
    : function_(partitioner == "consistent_random" ? rd_kafka_msg_partitioner_consistent_random
                                                   : rd_kafka_msg_partitioner_murmur2_random) {}

void Placement::begin_batch() noexcept {
    of_batch_ = 0;
    keyless_ = none;
}

// Uses only the value that the exchange has read: the sink may begin another batch meanwhile.
std::int32_t Placement::of_batch(std::int32_t partitions) noexcept {
    std::int32_t chosen = 0;
    return of_batch_.compare_exchange_strong(chosen, partitions) ? partitions
                                                                 : std::min(chosen, partitions);
}

std::int32_t Placement::choose(const rd_kafka_topic_t* topic, const void* key, std::size_t size,
                               std::int32_t partitions) noexcept {
    const std::int32_t count = of_batch(partitions);
    if (size > 0)
        return function_(topic, key, size, count, nullptr, nullptr);
    const std::int32_t chosen = keyless_;
    if (chosen != none && chosen < count)
        return chosen;
    return keyless_ = rd_kafka_msg_partitioner_random(topic, key, size, count, nullptr, nullptr);
}

}  // namespace outbox
