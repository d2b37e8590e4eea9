// Options of a destination that is Apache Kafka, or a service that speaks its protocol.
#pragma once

#include <optional>
#include <string>

#include "core/destination.hpp"
#include "core/topic_filter.hpp"
#include "net/transport_options.hpp"
#include "sinks/kafka/login_options.hpp"
#include "sinks/kafka/record_form.hpp"
#include "sinks/kafka/schema_options.hpp"

namespace outbox {

struct KafkaOptions {
    std::string source;   // the database events come from
    std::string brokers;  // "host:port,host:port", for the first connections
    bool tls = false;
    std::string ca_file;
    std::string certificate, private_key;  // of the client, as PEM, or empty
    KafkaLogin login;
    TransportOptions https;  // for requests to servers that are not brokers
    TextTemplate topic;
    RecordForm form;
    SchemaOptions schemas;
    bool has_time_of_event = false;
    std::optional<TopicFilter> tombstone_after;  // types of events
    std::string partitioner;
    std::string partition_header;  // header with the partition; if empty, the partitioner decides
    std::string compression;       // if empty, the best one that the library has
    std::size_t batch_size = 0;
    std::size_t max_request_size = 0;
    bool exactly_once = false;
    std::string identity;          // of the destination
    std::string transactional_id;  // empty if there are no transactions
    bool one_by_one = false;       // sends each record in a request of its own
    bool receipts = false;
    TimeLimits limits;
    AllowedHosts allowed_hosts;
};

KafkaOptions kafka_options(const Destination& destination);

extern const SinkDeclaration kafka_declaration;

}  // namespace outbox
