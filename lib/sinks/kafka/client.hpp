// A handle of librdkafka: how it is configured, which addresses it may connect to, how it is given
// up.
//
// Threads. One thread owns a client: it makes it, calls its functions and reads its queue. That is
// the thread of the sink, or that of a check. The threads of transactions only call get() and
// excess() of the client that they ask (transaction_thread.hpp). The library starts a main thread
// for each handle and a thread for each broker, with all signals blocked. They put their events
// (acknowledgements, errors, requests for a token) into one queue, and `wake` becomes readable when
// the queue is no longer empty.
//
// Only these callbacks run in threads of the library. None of them throws.
//
//   resolve               broker thread             writes Shared::refused, under Shared::mutex
//   KafkaBrokers          broker thread             counts threads, in atomics
//   place                 any, also that of sink    counts partitions and chooses one, in atomics
//   callbacks in          any                       figures of the process: atomics, and a mutex
//   notes.cpp
//
// They use Shared and the topics in it by plain pointers. Nothing writes to `wake` after
// stop_waking().
//
// End. The destructor does not wait. It drops what was not sent, and leaves the handle to a
// detached thread, which destroys it and keeps Shared alive until the library's threads have ended.
// A process that exits earlier skips its clean-up (prepare_process_for_kafka()).
#pragma once

#include <librdkafka/rdkafka.h>

#include <memory>
#include <string>
#include <vector>

#include "sinks/kafka/options.hpp"
#include "sinks/kafka/placement.hpp"

namespace outbox {

// The token that a client presents with sasl_mechanism OAUTHBEARER.
struct Token {
    std::string value{};
    std::string principal{};  // for messages of the library
    Micros expires = 0;       // since the Unix epoch
};

class KafkaClient {
  public:
    // `type`: a consumer only asks questions about groups, and joins none. A producer that asks
    // them may end the process, at least up to librdkafka 2.14, if another broker has to answer
    // (librdkafka issue 5040). `wake`: an eventfd that becomes readable when the queue has an
    // event, or -1. May throw std::bad_alloc.
    KafkaClient(const KafkaOptions& options, int wake, rd_kafka_type_t type = RD_KAFKA_PRODUCER);
    // Does not wait: the library's threads end on their own, and what they have not sent is
    // dropped.
    ~KafkaClient();
    KafkaClient(const KafkaClient&) = delete;
    KafkaClient& operator=(const KafkaClient&) = delete;

    // Returns why the handle could not be created, or an empty string.
    const std::string& failure() const noexcept { return failure_; }
    rd_kafka_t* get() const noexcept { return handle_; }

    // After this call nothing writes to the descriptor.
    void stop_waking() noexcept;
    // Returns the next event, or nullptr if the queue is empty.
    rd_kafka_event_t* next_event() noexcept;

    // Returns true if the library has asked for a token since the last one. next_event() notices
    // this.
    bool wants_token() const noexcept { return wants_token_; }
    // May throw std::bad_alloc.
    void set_token(const Token& token);
    // Says that there is no token for now. The library asks again in ten seconds.
    void refuse_token(const std::string& why) noexcept;

    // Returns the longest time that a broker has throttled the client since the last call.
    Micros take_throttle() noexcept;
    // Returns a new handle of a topic, and sets `placement`, which places its records. May throw
    // std::bad_alloc.
    rd_kafka_topic_t* new_topic(const std::string& name, const std::string& partitioner,
                                Placement*& placement);
    // Returns which limit the cluster exceeds, or an empty string. The descriptor becomes readable
    // when it exceeds one.
    std::string excess() const;
    // Returns a text for people: it says why an address was refused, which the library does not
    // know.
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
    std::string token_;                                // kept to conceal it
    bool wants_token_ = false;
};

// Call it before the first client. Makes sure that a process that exits while threads of the
// library run frees nothing that they use.
void prepare_process_for_kafka();

}  // namespace outbox
