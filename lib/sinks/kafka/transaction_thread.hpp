// The calls that begin and end a transaction of Kafka wait for brokers, so a thread makes them.
//
// Who does what: the sink produces and reads the producer's queue, also while the thread waits for
// the end of a transaction. It gives the thread one task at a time, and gets one result for it. When
// the sink gives it up, the thread ends within a moment, and takes the producer with it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sinks/kafka/producer.hpp"

namespace outbox {

class TransactionThread {
  public:
    enum class Task : std::uint8_t {
        start,   // fences off earlier producers, asks for the number of the last transaction
        commit,  // with its number
        abort,
    };
    struct Result {
        rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_NO_ERROR;
        std::string text{};
        bool must_abort = false;                  // the transaction did not take effect
        std::optional<std::int64_t> committed{};  // after start; nullopt: no number is known
    };

    // `asker`: a consumer, which is asked about the group; only for start. `group`: the producer's
    // id for transactions is also the name of the group that keeps the numbers. `wake`: the
    // descriptor that becomes readable when there is a result.
    TransactionThread(std::unique_ptr<Producer> producer, std::shared_ptr<KafkaClient> asker,
                      std::string group, int wake);
    ~TransactionThread();
    TransactionThread(const TransactionThread&) = delete;
    TransactionThread& operator=(const TransactionThread&) = delete;

    Producer& producer() noexcept { return *producer_; }
    // Gives it a task. `number` and `topic`, which must exist, are for commit.
    void begin(Task task, std::int64_t number = 0, const std::string& topic = {});
    std::optional<Result> take_result();

  private:
    struct Shared;

    std::unique_ptr<Producer> producer_;
    std::shared_ptr<Shared> shared_;
};

}  // namespace outbox
