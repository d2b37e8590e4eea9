// librdkafka for the programs of the benchmarks. Any error ends the program with a message.
#pragma once

#include <librdkafka/rdkafka.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "connection.hpp"

namespace outbox::bench {

using Settings = std::vector<std::pair<const char*, std::string>>;

struct CloseClient {
    void operator()(rd_kafka_t* client) const { rd_kafka_destroy(client); }
};
using KafkaClient = std::unique_ptr<rd_kafka_t, CloseClient>;

inline void check(rd_kafka_resp_err_t error, const char* what) {
    if (error != RD_KAFKA_RESP_ERR_NO_ERROR)
        die(what, rd_kafka_err2str(error));
}

inline rd_kafka_conf_t* configuration(const Settings& settings) {
    rd_kafka_conf_t* conf = rd_kafka_conf_new();
    char error[512] = "";
    for (const auto& [name, value] : settings)
        if (rd_kafka_conf_set(conf, name, value.c_str(), error, sizeof error) != RD_KAFKA_CONF_OK)
            die(name, error);
    return conf;
}

inline KafkaClient client(rd_kafka_type_t type, rd_kafka_conf_t* conf) {
    char error[512] = "";
    KafkaClient made(rd_kafka_new(type, conf, error, sizeof error));
    if (made == nullptr)
        die("librdkafka", error);
    return made;
}

// The number of partitions of a topic that exists.
inline std::int32_t partitions_of(rd_kafka_t* client, const char* topic) {
    rd_kafka_topic_t* handle = rd_kafka_topic_new(client, topic, nullptr);
    const rd_kafka_metadata_t* metadata = nullptr;
    check(rd_kafka_metadata(client, 0, handle, &metadata, 30'000), topic);
    check(metadata->topics[0].err, topic);
    const std::int32_t partitions = metadata->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(metadata);
    rd_kafka_topic_destroy(handle);
    return partitions;
}

}  // namespace outbox::bench
