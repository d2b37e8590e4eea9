// The thread of an SQS source. It does all work on the network: polls, extends, deletes, gives
// back.
//
// Protocol. Other threads never call the service. receive(), ack() and nack() change `claims_`
// under the mutex and wake the thread. The thread takes the next change from `claims_` and starts
// its request under the mutex, which does not block. It works and waits on the network without the
// mutex, and enters the result under the mutex again. Results are looked up by receipt handle, so a
// result that arrives after its message was settled changes nothing. `changed_` is notified when
// messages have arrived, when the queue is known, and after a failure; `failure_` stays until the
// next open(). Members of the thread are written by start() only while no thread runs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/backoff.hpp"
#include "core/clock.hpp"
#include "inbox/source.hpp"
#include "sqs/claims.hpp"
#include "sqs/service.hpp"

namespace inbox::sqs {

struct Place {
    outbox::AwsOptions aws;
    outbox::TransportOptions transport;
    std::string queue;      // name
    std::string queue_url;  // empty if the service must be asked for it
    std::string account;    // of its owner; empty for the account of the keys
    std::string subscription;
    bool fifo = false;
};

struct Times {
    std::chrono::seconds visibility, poll;
    std::chrono::milliseconds retry_base, retry_max;
};

class Worker {
  public:
    Worker(Place place, Times times, std::size_t pollers);
    ~Worker();

    // Waits until the queue is known. Throws SourceError.
    void open(const Log& log);
    std::vector<Delivery> receive(std::size_t most, std::chrono::milliseconds wait);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);
    void close(std::chrono::milliseconds limit) noexcept;

    const Place& place() const { return place_; }

  private:
    enum class Phase { closed, open, closing };
    struct Failure {
        std::string message;
        bool transient;
    };

    void start(const Log& log);
    void wake();
    [[noreturn]] void raise();

    void run();
    bool may_end(outbox::Micros now);
    bool turn();
    void wait(outbox::Micros until);
    outbox::Micros send_changes(outbox::Micros now);
    outbox::Micros send_polls(outbox::Micros now);
    bool wants_to_receive() const;
    bool has_keys(outbox::Micros now);
    void look_up();
    void poll();
    void change(Claims::Batch batch);

    void finish(const Request& request, outbox::Micros now);
    void take_queue_url(const Request& request);
    bool take_messages(const Request& request, outbox::Micros now);
    void poll_failed(const Request& request, outbox::Micros now);
    bool take_answers(const Request& request, outbox::Micros now);
    void change_failed(const Request& request, outbox::Micros now);
    void fail(std::string message, bool transient);
    void note(Level level, std::string message);
    void tell();

    const Place place_;
    const Times times_;
    const std::size_t pollers_;
    const outbox::SystemClock clock_;
    int wake_;   // an eventfd
    int epoll_;  // of wake_ and the service
    std::thread thread_;

    std::mutex mutex_;
    std::condition_variable changed_;
    // These are guarded by the mutex.
    Phase phase_ = Phase::closed;
    Claims claims_;
    std::string queue_url_;
    std::optional<Failure> failure_;  // nothing is received until the next open()
    outbox::Micros close_by_ = outbox::never;
    bool ended_ = false;  // the thread has ended by itself

    // These belong to the thread.
    Log log_;
    std::optional<Service> service_;
    bool has_worked_ = false;
    int refusals_ = 0;  // in a row
    outbox::Backoff poll_pauses_, change_pauses_;
    outbox::Micros poll_at_ = 0, change_at_ = 0;  // earliest times of the next requests
    std::vector<std::string> lost_attempts_;      // attempt ids of polls without an answer
    std::vector<std::pair<Level, std::string>> notes_;
};

}  // namespace inbox::sqs
