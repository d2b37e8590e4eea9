// The thread of a RabbitMQ source: connects, opens a channel, consumes, acknowledges.
//
// Protocol: as of SourceThread.
//
//   under the mutex    claims_, offsets_, stats_, is_known_, wants_...: other threads take and
//                      settle messages, and ask for positions
//   only the thread    the connection, channel_ and arrived_
//
// A turn:
//
//   without the mutex  step_connection() reads, and the channel puts messages together in arrived_
//   under the mutex    work() enters them in claims_ and offsets_, and sends acknowledgements
//   without the mutex  logs, and waits for the connection or for other threads
//
// When the channel ends, the connection is closed, too. The next one begins with new claims: the
// broker sends again what was not acknowledged. Deliveries of an earlier channel are recalled, so
// that no handler begins with them, and settling them changes nothing.
//
// seek() begins new claims at once, in the thread that calls it, and sets `wants_restart_`. The
// thread then replaces the connection, and drops what arrives over the old one.
//
// Offsets of a stream that was made again begin again. So the source asks for the message before its
// position, and compares it. If it does not come in time, the source looks at the last messages of
// the stream.
//
// At the end the thread sends the acknowledgements, closes the channel, and waits for the answer
// until close_by_. The broker gets the other messages back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/backoff.hpp"
#include "inbox/source.hpp"
#include "inbox/sources/rabbitmq.hpp"
#include "net/amqp/connection.hpp"
#include "rabbitmq/channel.hpp"
#include "rabbitmq/claims.hpp"
#include "rabbitmq/offsets.hpp"
#include "worker/source_thread.hpp"

namespace inbox::rabbitmq {

struct Setup {
    outbox::AmqpConfig config;
    std::string queue;
    std::string subscription;
    bool is_stream = false;
    bool starts_at_end = false;  // if a stream has no saved offset
    OnRecreated on_recreated = OnRecreated::begin_again;
    bool counted_ids_are_unique = false;
    std::uint16_t prefetch = 0;
    std::size_t max_message_size = 0;
    outbox::Micros retry_base = 0, retry_max = 0;
};

class Worker : public worker::SourceThread {
  public:
    explicit Worker(Setup setup);
    ~Worker() override;

    const Setup& setup() const { return setup_; }

    // Has no effect while the source is open. Throws SourceError.
    void load_position(const LoadPositions& load);
    std::vector<Position> positions(std::span<const Delivery* const> deliveries);
    std::vector<Position> moved_positions();
    std::vector<Gap> gaps();
    std::function<bool(const Delivery&)> recall();
    void seek(Time to);
    RabbitmqStats stats();

  private:
    enum class Stage { disconnected, connecting, opening, working, closing };

    void starts() override;
    bool is_known() const override { return is_known_; }
    std::size_t buffered() const override { return claims_.waiting(); }
    std::vector<Delivery> take(std::size_t most) override { return claims_.take(most); }
    void settle(std::span<const Delivery> deliveries) override;
    void give_back(std::span<const Delivery> deliveries) override;
    void give_back_all() override {}
    void forget_all() override;
    int prepare() override;
    bool turn() override;
    void clean_up() noexcept override;

    // The thread's.
    void step_connection(outbox::Micros now);
    outbox::Micros work(outbox::Micros now);  // under the mutex
    void begin_claims();
    void connect();
    void disconnect(outbox::Micros now);
    void lost(const std::string& why, bool is_refusal, outbox::Micros now);
    void ended(const Channel::End& end, outbox::Micros now);
    void give_up(const std::string& why, outbox::Micros now);
    void open_channel(outbox::Micros now);
    void take_arrived(outbox::Micros now);
    std::string unusable(const Envelope& envelope) const;
    // Returns false if the connection was given up.
    bool enter(Message message, outbox::Micros now);
    bool follows(std::int64_t offset, const std::optional<Time>& stamp, const std::string& event_id,
                 outbox::Micros now);
    void asks_too_long(outbox::Micros now);
    void recreated(const std::string& why, outbox::Micros now);
    void warn_of_ids(const Envelope& envelope);
    void send_acks();

    const Setup setup_;
    const std::string instance_;  // different in each source

    // These are guarded by the mutex.
    Claims claims_;
    Offsets offsets_;
    RabbitmqStats stats_;
    std::vector<Gap> gaps_;
    bool begins_at_end_ = false;  // of the stream, once
    bool is_known_ = false;       // the queue, since open()
    bool wants_recall_ = false;   // of deliveries of an earlier channel
    bool wants_restart_ = false;  // because of a seek

    // These belong to the thread.
    std::optional<outbox::AmqpConnection> connection_;
    Channel channel_;
    std::vector<Message> arrived_;
    Stage stage_ = Stage::disconnected;
    bool has_worked_ = false;
    // The log has a line about them.
    bool has_unnamed_ = false, has_counted_ = false;
    std::optional<std::int64_t> asked_offset_;  // until a message of the stream has come
    bool has_asked_again_ = false;              // a later message has come first
    // The message that was asked for has not come, so the last ones of the stream are looked at.
    bool looks_at_end_ = false;
    std::optional<std::int64_t> seen_end_;  // the highest offset seen then
    int refusals_ = 0;                      // in a row
    outbox::Backoff pauses_;
    outbox::Micros connect_at_ = 0;
    outbox::Micros answer_due_ = outbox::never;
};

}  // namespace inbox::rabbitmq
