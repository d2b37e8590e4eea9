// A consumer handle of librdkafka: its configuration, its two queues, and its end.
//
// The library has a thread for each broker, in which all signals are blocked. These threads are
// counted, and call no other function of ours: events wait in `events`, records in `records`.
#pragma once

#include <librdkafka/rdkafka.h>

#include <memory>
#include <string>

#include "inbox/sources/kafka.hpp"
#include "net/kafka_brokers.hpp"

namespace inbox::kafka {

struct DestroyList {
    void operator()(rd_kafka_topic_partition_list_t* list) const noexcept {
        rd_kafka_topic_partition_list_destroy(list);
    }
};
using List = std::unique_ptr<rd_kafka_topic_partition_list_t, DestroyList>;

// Throws std::invalid_argument for properties that the source must set itself.
void check_properties(const KafkaOptions& options);

class Client {
  public:
    // `wake` is an eventfd, which becomes readable when a queue has something. Throws SourceError,
    // not transient, if the library refuses a property.
    Client(const KafkaOptions& options, int wake);
    // Waits for at most a second: a thread of the library may be stuck in a name server that does
    // not answer. The handle then ends in a thread of its own.
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    rd_kafka_t* get() const noexcept { return handle_; }
    // Must be read all the time. The group regards a process that does not read it as dead.
    rd_kafka_queue_t* events() const noexcept { return events_; }
    // Need not be read: the library stops fetching when it holds enough.
    rd_kafka_queue_t* records() const noexcept { return records_; }

    // Returns why the handle must be given up, or an empty string.
    std::string excess() const { return brokers_->excess(); }

    // Must be called before a partition is assigned.
    void forward_records(const char* topic, std::int32_t partition) const;
    // Must be called when the group has assigned partitions, even an empty list.
    void has_been_assigned() noexcept { was_assigned_ = true; }

  private:
    bool can_be_destroyed() const;

    std::shared_ptr<outbox::KafkaBrokers> brokers_;
    bool was_assigned_ = false;
    rd_kafka_t* handle_ = nullptr;
    rd_kafka_queue_t* events_ = nullptr;
    rd_kafka_queue_t* records_ = nullptr;
};

}  // namespace inbox::kafka
