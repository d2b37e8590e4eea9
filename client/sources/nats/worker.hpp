// The thread of a NATS source. It does all work on the network: connects, pulls, acknowledges,
// gives back, asks for more time.
//
// Protocol: as of SourceThread.
//
//   under the mutex    claims_, is_known_: other threads take messages, and settle them
//   only the thread    the connection; pulls_ and confirmations_, its requests without an answer;
//                      arrived_, consumer_answer_, trouble_: notes of on_message() and on_error()
//
// A turn:
//
//   without the mutex  step_connection() reads; the connection calls on_message(), which only notes
//   under the mutex    work() enters the notes in claims_, takes commands from there and sends them
//   without the mutex  logs, and waits for the connection or for other threads
//
// Claims do not depend on a connection: when it is lost, commands that have no answer are sent over
// the next one, and messages on their way come again after the consumer's ack_wait. At the end the
// thread ends its pulls by another inbox, gives everything back, and waits for confirmations.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/backoff.hpp"
#include "inbox/source.hpp"
#include "nats/claims.hpp"
#include "nats/delivery.hpp"
#include "net/nats/nats_connection.hpp"
#include "net/nats/nats_inbox.hpp"
#include "worker/source_thread.hpp"

namespace inbox::nats {

struct Setup {
    outbox::NatsConfig config;
    std::string stream, consumer;
    std::string inbox_prefix;
    std::string subscription;
    std::size_t prefetch = 0;
    bool double_ack = false;
    OnRecreated on_recreated = OnRecreated::begin_again;
    outbox::Micros request_timeout = 0;
    outbox::Micros retry_base = 0, retry_max = 0;
};

class Worker : public worker::SourceThread, outbox::NatsListener {
  public:
    explicit Worker(Setup setup);
    ~Worker() override;

    const Setup& setup() const { return setup_; }

    // Throws SourceError.
    void load_incarnation(const LoadPositions& load);
    // Adds the incarnation to the position of the newest message.
    Position position_of(Position newest);
    std::vector<Gap> gaps();

  private:
    enum class Stage { disconnected, connecting, asking, working };
    // A request for messages that the server has not ended.
    struct Pull {
        std::size_t left = 0;  // messages that may still come
        outbox::Micros due = 0;
    };
    struct Confirmation {
        Claims::Command command;
        outbox::Micros due = 0;
    };

    void starts() override;
    bool is_known() const override { return is_known_; }
    std::size_t buffered() const override { return claims_.buffered(); }
    std::vector<Delivery> take(std::size_t most) override { return claims_.take(most); }
    void settle(std::span<const Delivery> deliveries) override { claims_.ack(deliveries); }
    void give_back(std::span<const Delivery> deliveries) override {
        claims_.nack(deliveries, clock_.now());
    }
    void give_back_all() override { claims_.give_back_all(); }
    void forget_all() override { claims_ = Claims(); }
    int prepare() override;
    bool turn() override;
    void clean_up() noexcept override;

    // The thread's.
    void step_connection(outbox::Micros now);
    outbox::Micros work(outbox::Micros now);  // under the mutex
    void connect(outbox::Micros now);
    void lost(std::string why, bool is_refusal, outbox::Micros now);
    void disconnect(outbox::Micros now);
    void forget_requests();
    void end_pulls(outbox::Micros now);
    std::string consumer_info() const;  // the subject that asks for it
    void ask_for_consumer(outbox::Micros now);
    void take_consumer(const std::string& answer, bool no_responders, outbox::Micros now);
    bool take_incarnation(const std::string& created, outbox::Micros now);
    void look_for_skipped(const Place& place);
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
    void give_up(std::string message, bool transient);

    const Setup setup_;

    // These are guarded by the mutex.
    Claims claims_;
    bool is_known_ = false;    // the consumer, since open()
    std::string incarnation_;  // when the consumer was created, as the server writes it
    std::string saved_incarnation_;
    Time saved_at_{};  // of the last position
    std::vector<Gap> gaps_;

    // These belong to the thread.
    std::optional<outbox::NatsConnection> connection_;
    outbox::NatsInbox inbox_;
    Stage stage_ = Stage::disconnected;
    bool has_worked_ = false;
    int refusals_ = 0;  // in a row
    outbox::Backoff pauses_;
    std::size_t message_size_;  // of messages to come, as far as is known
    outbox::Micros connect_at_ = 0;
    std::uint64_t request_ = 0;
    std::uint64_t consumer_request_ = 0;
    // The last delivery, to this process or another one. A consumer with a filter leaves out others.
    std::optional<Place> last_delivery_;
    bool has_filter_ = false;
    outbox::Micros answer_due_ = outbox::never;            // of that request
    std::map<std::uint64_t, Pull> pulls_;                  // by request
    std::map<std::uint64_t, Confirmation> confirmations_;  // by request
    // Notes of on_message() and on_error().
    std::vector<Delivery> arrived_;
    std::optional<std::string> consumer_answer_;
    bool no_responders_ = false;
    std::uint64_t skipped_ = 0;
    std::string trouble_;  // why the connection is of no use
};

}  // namespace inbox::nats
