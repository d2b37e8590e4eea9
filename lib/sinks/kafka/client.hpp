// A handle of librdkafka: how it is configured, which addresses it may connect to, how it is given up.
//
// The library brings a thread of its own for each broker. All signals are blocked in them, they call
// nothing of ours but the look-up of addresses, and what they have to say waits in one queue, which
// this side reads when its descriptor is readable.
#pragma once

#include <librdkafka/rdkafka.h>

#include <memory>
#include <string>
#include <vector>

#include "sinks/kafka/options.hpp"
#include "sinks/kafka/placement.hpp"

namespace outbox {

// What a client presents with sasl_mechanism OAUTHBEARER.
struct Token {
    std::string value{};
    std::string principal{};  // for messages of the library
    Micros expires = 0;       // since the Unix epoch
};

class KafkaClient {
  public:
    // `type`: a consumer joins nothing. It is for questions about groups: asked with a producer they
    // can end the process, up to librdkafka 2.14 at least, when another broker has to answer them
    // (librdkafka issue 5040).
    // `wake`: the descriptor, an eventfd, which becomes readable when the queue has something; -1:
    // none. May throw std::bad_alloc.
    KafkaClient(const KafkaOptions& options, int wake, rd_kafka_type_t type = RD_KAFKA_PRODUCER);
    // Waits for nothing: the library's threads end beside us, and what they have not sent is dropped.
    ~KafkaClient();
    KafkaClient(const KafkaClient&) = delete;
    KafkaClient& operator=(const KafkaClient&) = delete;

    // Why there is no handle; empty: there is one.
    const std::string& failure() const noexcept { return failure_; }
    rd_kafka_t* get() const noexcept { return handle_; }

    // The descriptor is not touched any more.
    void stop_waking() noexcept;
    // The next thing in the queue; nullptr: it is empty.
    rd_kafka_event_t* next_event() noexcept;

    // The library has asked for a token since the last one, which next_event() notices.
    bool wants_token() const noexcept { return wants_token_; }
    // May throw std::bad_alloc.
    void set_token(const Token& token);
    // There is none for now. The library asks again in ten seconds.
    void refuse_token(const std::string& why) noexcept;

    // The longest time that a broker has throttled us for, since the last call.
    Micros take_throttle() noexcept;
    // A new handle of a topic, and how its records are placed. May throw std::bad_alloc.
    rd_kafka_topic_t* new_topic(const std::string& name, const std::string& partitioner,
                                Placement*& placement);
    // What the cluster has more of than can be borne; empty: nothing. The descriptor becomes readable
    // when there is something.
    std::string excess() const;
    // What an error means to the reader: the library does not know why an address was refused.
    std::string explain(rd_kafka_resp_err_t code, const char* error) const;

    struct Shared;

  private:
    bool configure(rd_kafka_conf_t* conf, const KafkaOptions& options, rd_kafka_type_t type);
    bool set_connection(rd_kafka_conf_t* conf, const KafkaOptions& options);
    bool set_tls(rd_kafka_conf_t* conf, const KafkaOptions& options);
    bool set_login(rd_kafka_conf_t* conf, const KafkaOptions& options);
    bool set_producing(rd_kafka_conf_t* conf, const KafkaOptions& options);
    bool set_asking(rd_kafka_conf_t* conf, const KafkaOptions& options);
    bool set_compression(rd_kafka_conf_t* conf, const KafkaOptions& options);
    bool set_gapless(rd_kafka_conf_t* conf);
    bool set_transactional(rd_kafka_conf_t* conf, const KafkaOptions& options);
    bool set(rd_kafka_conf_t* conf, const char* name, const std::string& value);

    std::shared_ptr<Shared> shared_;  // the library's threads use it until they have ended
    std::string failure_;
    rd_kafka_t* handle_ = nullptr;
    rd_kafka_queue_t* queue_ = nullptr;
    const std::vector<std::string> token_extensions_;  // names and values in turn
    std::string token_;                                // to conceal it
    bool wants_token_ = false;
};

// Before the first client: a process that exits while threads of the library run frees nothing that
// they use.
void prepare_process_for_kafka();

}  // namespace outbox
