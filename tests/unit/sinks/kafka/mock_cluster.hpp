// A cluster inside the test, as librdkafka brings it: listens on loopback and fails as it is told.
#pragma once

#include <gtest/gtest.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace outbox {

struct MockRecord {
    std::string topic;
    std::int32_t partition = -1;
    std::int64_t offset = -1;
    std::string key;
    std::optional<std::string> value;
    std::vector<std::pair<std::string, std::string>> headers;
    std::int64_t timestamp = 0;
};

class MockCluster {
  public:
    explicit MockCluster(int brokers = 1) {
        char error[512] = "";
        rd_kafka_conf_t* conf = rd_kafka_conf_new();
        rd_kafka_conf_set_log_cb(conf, nullptr);
        handle_ = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
        EXPECT_NE(handle_, nullptr) << error;
        cluster_ = rd_kafka_mock_cluster_new(handle_, brokers);
    }
    ~MockCluster() {
        rd_kafka_mock_cluster_destroy(cluster_);
        rd_kafka_destroy(handle_);
    }
    MockCluster(const MockCluster&) = delete;
    MockCluster& operator=(const MockCluster&) = delete;

    std::string brokers() const { return rd_kafka_mock_cluster_bootstraps(cluster_); }
    rd_kafka_mock_cluster_t* get() const { return cluster_; }

    void add_topic(const char* name, int partitions = 4) {
        rd_kafka_mock_topic_create(cluster_, name, partitions, 1);
    }
    // What the next Produce requests are answered with.
    void fail(std::initializer_list<rd_kafka_resp_err_t> errors) {
        const std::vector<rd_kafka_resp_err_t> list(errors);
        rd_kafka_mock_push_request_errors_array(cluster_, 0, list.size(), list.data());
    }

    // All that has been acknowledged, or may yet be: from the beginning, each partition in its order.
    std::vector<MockRecord> records(const std::string& topic, int partitions = 4) const {
        rd_kafka_conf_t* conf = rd_kafka_conf_new();
        char error[512] = "";
        for (const auto& [name, value] :
             {std::pair<const char*, std::string>{"bootstrap.servers", brokers()},
              {"group.id", "test"},
              {"enable.partition.eof", "true"},
              {"auto.offset.reset", "earliest"}})
            rd_kafka_conf_set(conf, name, value.c_str(), error, sizeof error);
        rd_kafka_t* reader = rd_kafka_new(RD_KAFKA_CONSUMER, conf, error, sizeof error);
        EXPECT_NE(reader, nullptr) << error;
        rd_kafka_topic_partition_list_t* all = rd_kafka_topic_partition_list_new(partitions);
        for (int i = 0; i < partitions; i++)
            rd_kafka_topic_partition_list_add(all, topic.c_str(), i)->offset = 0;
        rd_kafka_assign(reader, all);
        std::vector<MockRecord> found;
        for (int ended = 0; ended < partitions;) {
            rd_kafka_message_t* message = rd_kafka_consumer_poll(reader, 60'000);
            if (message == nullptr) {
                ADD_FAILURE() << "the mock cluster does not answer";
                break;
            }
            if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
                ended++;
            else if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR)
                found.push_back(record_of(*message));
            rd_kafka_message_destroy(message);
        }
        rd_kafka_topic_partition_list_destroy(all);
        rd_kafka_consumer_close(reader);
        rd_kafka_destroy(reader);
        return found;
    }

  private:
    static MockRecord record_of(const rd_kafka_message_t& message) {
        MockRecord record{
            .topic = rd_kafka_topic_name(message.rkt),
            .partition = message.partition,
            .offset = message.offset,
            .key = std::string(static_cast<const char*>(message.key), message.key_len),
            .value = {},
            .headers = {},
            .timestamp = rd_kafka_message_timestamp(&message, nullptr)};
        if (message.payload != nullptr)
            record.value.emplace(static_cast<const char*>(message.payload), message.len);
        rd_kafka_headers_t* headers = nullptr;
        if (rd_kafka_message_headers(&message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
            return record;
        const char* name = nullptr;
        const void* value = nullptr;
        std::size_t size = 0;
        for (std::size_t i = 0; rd_kafka_header_get_all(headers, i, &name, &value, &size) ==
                                RD_KAFKA_RESP_ERR_NO_ERROR;
             i++)
            record.headers.emplace_back(name, std::string(static_cast<const char*>(value), size));
        return record;
    }

    rd_kafka_t* handle_ = nullptr;
    rd_kafka_mock_cluster_t* cluster_ = nullptr;
};

}  // namespace outbox
