// A record of Kafka, and the delivery that it becomes. It may come from pg_outbox's sink, from
// Debezium's Outbox Event Router, or from any other producer.
#pragma once

#include <librdkafka/rdkafka.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "inbox/event.hpp"

namespace inbox::kafka {

struct Record {
    std::string topic;
    std::int32_t partition = -1;
    std::int64_t offset = -1;
    std::string key;
    std::optional<std::string> value;            // none in a tombstone
    std::map<std::string, std::string> headers;  // the last one of each name; none without a value
    std::int64_t timestamp = -1;                 // in milliseconds; -1 if there is none
};

Record record_of(const rd_kafka_message_t& message);

// `source` is the subscription. The handle stays empty.
Delivery delivery_from(Record record, const std::string& source);

}  // namespace inbox::kafka
