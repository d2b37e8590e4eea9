// An idempotent producer: events go in, and what became of each comes out.
//
// Of what was produced to a partition nothing arrives behind a record that failed: the producer stops
// for good (is_broken()), whoever owns it makes another one, and sends again what was not confirmed.
// The same happens when librdkafka 2.0 loses count of its sequence numbers after a connection was lost
// (librdkafka issue 4438).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sinks/kafka/client.hpp"
#include "sinks/kafka/record.hpp"

namespace outbox {

// One event on its way. It must stay where it is until the producer has gone, or has reported it.
struct Delivery {
    void* owner = nullptr;
    bool reported = false;
    rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_NO_ERROR;
    std::int32_t partition = -1;
    std::int64_t offset = -1;
    const Delivery* tombstone = nullptr;  // of the record that follows it, if one does
};

// How a record's value differs from the one that its format has.
struct RecordValue {
    std::string_view frame{};  // bytes in front of it, unless it is null
    bool is_null = false;
};

class Producer {
  public:
    // May throw std::bad_alloc, as all of it.
    Producer(const KafkaOptions& options, int wake);
    ~Producer();

    // Why it cannot be used; empty: it can.
    const std::string& failure() const noexcept { return client_.failure(); }
    rd_kafka_t* handle() const noexcept { return client_.get(); }
    // The descriptor is not touched any more.
    void stop_waking() noexcept { client_.stop_waking(); }

    // The library keeps all that it learns of topics. Before there are too many of them another
    // producer is due.
    bool has_room_for(const std::string& topic) const;

    // The records that follow are of one batch; see Placement.
    void begin_batch(const std::string& topic);

    // Starts to send, or says why not. `partition`: RD_KAFKA_PARTITION_UA: the partitioner says.
    rd_kafka_resp_err_t produce(const std::string& topic, const Event& event,
                                std::int32_t partition, RecordEncoder& encoder, Delivery& delivery,
                                const RecordValue& as = {});

    // Takes in what there is, and appends the deliveries that were reported.
    void poll(std::vector<Delivery*>& reported);

    // Records that it has not reported.
    std::size_t queued() const noexcept {
        return static_cast<std::size_t>(rd_kafka_outq_len(client_.get()));
    }
    bool has_confirmed() const noexcept { return has_confirmed_; }
    // It will send nothing any more.
    bool is_broken() const noexcept { return broken_; }
    // The cluster is larger than can be borne.
    bool is_overgrown() const noexcept { return is_overgrown_; }
    // Nothing listens, as far as is known.
    bool is_disconnected() const noexcept { return disconnected_; }
    // The last that went wrong with a connection, since something was confirmed; empty: nothing.
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
    void ask_about(rd_kafka_topic_t* topic) noexcept;
    void take_reports(rd_kafka_event_t* event, std::vector<Delivery*>& reported);
    void take_error(rd_kafka_event_t* event);

    // Handles of topics, which are kept: with the first one the library asks for the topic's leaders,
    // and without it a first record may wait for a second.
    struct Topics {
        std::map<std::string, Topic, std::less<>> known;
        ~Topics() {
            for (const auto& [name, topic] : known)
                if (topic.handle != nullptr)
                    rd_kafka_topic_destroy(topic.handle);
        }
    };

    const std::string partitioner_;
    KafkaClient client_;
    Topics topics_;  // must go before the client
    std::string framed_;
    bool has_confirmed_ = false;
    bool broken_ = false;
    bool is_overgrown_ = false;
    bool disconnected_ = false;
    bool refused_ = false;
    std::string trouble_;
};

}  // namespace outbox
