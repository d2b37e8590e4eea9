// A thread for the calls that begin and end a transaction of Kafka, because they wait for brokers.
//
// Two threads use the producer. The sink's thread begins transactions, produces, and reads the
// queue, also while the other one waits for the end of a transaction. This thread only makes the
// calls that wait: to fence off earlier producers, to send the number, to commit and to abort.
// `asker` is shared by several such threads; each only puts questions to it, and gets the answers
// in a queue of its own.
//
// The sink gives the thread one task at a time (begin()), and gets one result for it
// (take_result()). Both are in Shared, under its mutex. A result makes `wake` readable.
//
// End. The destructor does not wait. It takes `wake` away, tells the thread to stop, and leaves the
// producer to it. The thread notices within 200 ms, destroys the producer and ends. So the handle
// stays valid for the call that the thread is in, and the Sendings that its records point to may go
// at once, because nothing reads the queue any more. A transaction that was being committed is then
// in doubt; see transactional_sink.cpp.
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
        start,   // fences off earlier producers, and asks for the number of the last transaction
        commit,  // needs the number
        abort,
    };
    struct Result {
        rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_NO_ERROR;
        std::string text{};
        bool must_abort = false;                  // the transaction did not take effect
        std::optional<std::int64_t> committed{};  // after start; std::nullopt if no number is known
    };

    // `asker` is a consumer that is asked about the group, only for start. `group` keeps the
    // numbers; its name is the producer's transactional id. `wake` becomes readable when there is a
    // result.
    TransactionThread(std::unique_ptr<Producer> producer, std::shared_ptr<KafkaClient> asker,
                      std::string group, int wake);
    ~TransactionThread();
    TransactionThread(const TransactionThread&) = delete;
    TransactionThread& operator=(const TransactionThread&) = delete;

    Producer& producer() noexcept { return *producer_; }
    // Gives the thread a task. `number` and `topic`, which must exist, are for commit.
    void begin(Task task, std::int64_t number = 0, const std::string& topic = {});
    std::optional<Result> take_result();

  private:
    struct Shared;

    std::unique_ptr<Producer> producer_;
    std::shared_ptr<Shared> shared_;
};

}  // namespace outbox
