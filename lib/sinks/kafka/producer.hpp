// An idempotent producer. Takes events and reports the outcome of each.
//
// After a record fails, no later record of its partition is delivered: the producer stops for good
// (is_broken()). Its owner makes another one, and sends again what was not confirmed. The same
// happens when librdkafka 2.0 loses count of its sequence numbers after a connection was lost
// (librdkafka issue 4438).
//
// One thread makes it and calls it; see client.hpp for what the library does in others. Only the
// destructor may run in another thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sinks/kafka/client.hpp"
#include "sinks/kafka/record.hpp"

namespace outbox {

// An event on its way. It must stay where it is until the producer has reported it or is destroyed.
struct Delivery {
    void* owner = nullptr;
    bool reported = false;
    rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_NO_ERROR;
    std::int32_t partition = -1;
    std::int64_t offset = -1;
    const Delivery* tombstone = nullptr;  // the record that follows this one, or nullptr
};

// Differences from the value that the record's format has.
struct RecordValue {
    std::string_view frame{};  // bytes in front of the value, unless it is null
    bool is_null = false;
};

class Producer {
  public:
    // All functions may throw std::bad_alloc, unless they are noexcept.
    Producer(const KafkaOptions& options, int wake);
    ~Producer();

    // Returns why it cannot be used, or an empty string.
    const std::string& failure() const noexcept { return client_.failure(); }
    rd_kafka_t* handle() const noexcept { return client_.get(); }
    // After this call nothing writes to the descriptor.
    void stop_waking() noexcept { client_.stop_waking(); }

    // Returns false if the library knows many topics, which it never forgets. Then another producer
    // is due.
    bool has_room_for(const std::string& topic) const;

    // Says that the records that follow are of one batch; see Placement.
    void begin_batch(const std::string& topic);

    // Starts to send, or returns why it cannot. The partitioner decides if `partition` is
    // RD_KAFKA_PARTITION_UA.
    rd_kafka_resp_err_t produce(const std::string& topic, const Event& event,
                                std::int32_t partition, RecordEncoder& encoder, Delivery& delivery,
                                const RecordValue& as = {});

    // Reads the queue, and appends the deliveries that were reported.
    void poll(std::vector<Delivery*>& reported);

    // Number of records that it has not reported.
    std::size_t queued() const noexcept {
        return static_cast<std::size_t>(rd_kafka_outq_len(client_.get()));
    }
    bool has_confirmed() const noexcept { return has_confirmed_; }
    // It will not send anything again.
    bool is_broken() const noexcept { return broken_; }
    // The cluster has more brokers or partitions than this process allows.
    bool is_overgrown() const noexcept { return is_overgrown_; }
    // As far as is known, no broker can be reached.
    bool is_disconnected() const noexcept { return disconnected_; }
    // The last error of a connection since a record was confirmed, or an empty string.
    const std::string& trouble() const noexcept { return trouble_; }
    // A broker has refused the login.
    bool is_refused() const noexcept { return refused_; }
    Micros take_throttle() noexcept { return client_.take_throttle(); }
    KafkaClient& client() noexcept { return client_; }
    std::string explain(rd_kafka_resp_err_t code, const char* error) const {
        return client_.explain(code, error);
    }

  private:
    struct Topic {
        rd_kafka_topic_t* handle = nullptr;
        Placement* placement = nullptr;
    };
    Topic& topic(const std::string& name);
    std::int64_t timestamp_of(const Event& event) const noexcept;
    void ask_about(rd_kafka_topic_t* topic) noexcept;
    void take_reports(rd_kafka_event_t* event, std::vector<Delivery*>& reported);
    void take_error(rd_kafka_event_t* event);

    // Handles of topics are kept: with the first handle the library asks for the leaders of the
    // topic, and without one a first record may wait for a second.
    struct Topics {
        std::map<std::string, Topic, std::less<>> known;
        ~Topics() {
            for (const auto& [name, topic] : known)
                if (topic.handle != nullptr)
                    rd_kafka_topic_destroy(topic.handle);
        }
    };

    const std::string partitioner_;
    const bool has_time_of_event_;
    KafkaClient client_;
    Topics topics_;  // destroyed before the client
    std::string framed_;
    bool has_confirmed_ = false;
    bool broken_ = false;
    bool is_overgrown_ = false;
    bool disconnected_ = false;
    bool refused_ = false;
    std::string trouble_;
};

}  // namespace outbox
