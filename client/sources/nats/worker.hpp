// The thread of a NATS source. It does all work on the network: connects, pulls, acknowledges, gives
// back, asks for more time.
//
// Protocol. Other threads never use the connection. receive(), ack() and nack() change `claims_` under
// the mutex and wake the thread. The thread works on the network without the mutex, where the connection
// calls on_message(), which only notes what has arrived; it enters that under the mutex, takes
// commands from `claims_`, and sends them without it. `changed_` is notified when messages have
// arrived, when the consumer of the stream is known, and after a failure; `failure_` stays until the
// next open(). Members of the thread are written by start() only while no thread runs.
//
// Claims do not depend on a connection: when it is lost, commands that have no answer are sent over the
// next one, and messages on their way come again after the consumer's ack_wait.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/backoff.hpp"
#include "inbox/source.hpp"
#include "nats/claims.hpp"
#include "nats/delivery.hpp"
#include "net/nats/nats_connection.hpp"
#include "net/nats/nats_inbox.hpp"

namespace inbox::nats {

struct Setup {
    outbox::NatsConfig config;
    std::string stream, consumer;
    std::string inbox_prefix;
    std::string subscription;
    std::size_t prefetch = 0;
    bool double_ack = false;
    outbox::Micros request_timeout = 0;
    outbox::Micros retry_base = 0, retry_max = 0;
};

class Worker : outbox::NatsListener {
  public:
    explicit Worker(Setup setup);
    ~Worker() override;

    // Waits until the consumer of the stream is known. Throws SourceError.
    void open(const Log& log);
    std::vector<Delivery> receive(std::size_t most, std::chrono::milliseconds wait);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);
    void close(std::chrono::milliseconds limit) noexcept;

    const Setup& setup() const { return setup_; }

  private:
    enum class Phase { closed, open, closing };
    enum class Stage { disconnected, connecting, asking, working };
    struct Failure {
        std::string message;
        bool transient;
    };
    // A request for messages that the server has not ended.
    struct Pull {
        std::size_t left = 0;  // messages that may still come
        outbox::Micros due = 0;
    };
    struct Confirmation {
        Claims::Command command;
        outbox::Micros due = 0;
    };

    void start(const Log& log);
    void wake();
    [[noreturn]] void raise();

    // The thread's.
    void run();
    bool turn();
    void wait(outbox::Micros until);
    void step_connection(outbox::Micros now);
    outbox::Micros work(outbox::Micros now);  // under the mutex
    void connect(outbox::Micros now);
    void lost(std::string why, bool is_refusal, outbox::Micros now);
    void disconnect(outbox::Micros now);
    void ask_for_consumer(outbox::Micros now);
    void take_consumer(const std::string& answer, bool no_responders, outbox::Micros now);
    void take_arrived(outbox::Micros now);
    void send_commands(outbox::Micros now);
    void send_pulls(outbox::Micros now);
    std::size_t coming() const noexcept;
    bool is_settled() const noexcept;
    std::uint64_t publish(const std::string& subject, const std::string& body, bool with_reply);
    void take_message(const outbox::NatsInput& message, const Place& place);
    void on_message(const outbox::NatsInput& message) override;
    void on_error(std::string_view text) override;
    void take_status(std::map<std::uint64_t, Pull>::iterator pull, int status,
                     std::string_view text);
    void fail(std::string message, bool transient);
    void note(Level level, std::string message);
    void tell();

    const Setup setup_;
    const outbox::SystemClock clock_;
    const outbox::NatsInbox inbox_;
    int wake_;   // an eventfd
    int epoll_;  // of wake_ and the connection
    std::thread thread_;

    std::mutex mutex_;
    std::condition_variable changed_;
    // These are guarded by the mutex.
    Phase phase_ = Phase::closed;
    Claims claims_;
    bool is_known_ = false;           // the consumer, since open()
    std::optional<Failure> failure_;  // nothing is received until the next open()
    outbox::Micros close_by_ = outbox::never;
    bool ended_ = false;  // the thread has ended by itself

    // These belong to the thread.
    Log log_;
    std::optional<outbox::NatsConnection> connection_;
    Stage stage_ = Stage::disconnected;
    bool has_worked_ = false;
    int refusals_ = 0;  // in a row
    outbox::Backoff pauses_;
    outbox::Micros connect_at_ = 0;
    std::uint64_t request_ = 0;
    std::uint64_t consumer_request_ = 0;
    outbox::Micros answer_due_ = outbox::never;  // of that request
    std::map<std::uint64_t, Pull> pulls_;                  // by request
    std::map<std::uint64_t, Confirmation> confirmations_;  // by request
    // What on_message() has noted.
    std::vector<Delivery> arrived_;
    std::optional<std::string> consumer_answer_;
    bool no_responders_ = false;
    std::string trouble_;  // why the connection is of no use
    std::vector<std::pair<Level, std::string>> notes_;
};

}  // namespace inbox::nats
