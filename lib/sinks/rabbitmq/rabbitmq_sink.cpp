// The rabbitmq sink: each event of a batch is a message, and the batch is settled when the server
// has confirmed or returned every one of them.
//
// There is one connection. Each exchange has a channel of its own, because the server closes a
// channel on the first message for a missing exchange, and then does not report the other messages
// on it. A channel counts its messages, and confirmations refer to these numbers ("tags"). If a
// message cannot be routed, the server first returns it and then confirms it, so a confirmation
// counts only if no other outcome came before it.
//
//   waiting_   batches that were not sent: the connection is not ready, or accepts no more for now
//   sendings_  batches that were sent, in this order
//
// A server that is short of memory or disk space blocks the connection: it stops reading, and takes
// later what was already sent. In the meantime waiting batches are throttled. So are sent batches
// that are not confirmed within request_timeout, so that the status of the destination shows the
// reason. The server may get the events of those twice, but no others, because nothing is sent
// while it blocks.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "core/late.hpp"
#include "core/sink.hpp"
#include "core/text.hpp"
#include "net/amqp/connection.hpp"
#include "net/transport.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/rabbitmq/connect.hpp"
#include "sinks/rabbitmq/message.hpp"
#include "sinks/rabbitmq/options.hpp"
#include "sinks/rabbitmq/verdict.hpp"

namespace outbox {

namespace {

constexpr std::size_t usual_batches = 32;
constexpr std::size_t usual_batch_bytes = 1024 * 1024;
constexpr std::size_t most_unsent = 1024 * 1024;  // above this, batches wait
constexpr std::size_t most_channels = 64;
constexpr Micros pause_while_blocked = seconds(1);

// A batch that was sent.
struct Sending {
    Batch* batch;
    std::string exchange, routing_key;  // if the key is empty, each event has its own
    Micros sent_at;
    std::size_t left = 0;                  // events without a confirmation
    std::vector<bool> settled{};           // by event
    std::vector<EventOutcome> outcomes{};  // by event; empty while all are confirmed
};

struct Waiting {
    Batch* batch;
    Micros since;
};

// A message that was sent and not confirmed.
struct Travelling {
    Sending* sending;  // nullptr if the sink no longer waits for it
    std::uint32_t index;
    std::uint32_t body_size;
};

struct Channel {
    enum class State { unused, open, closing } state = State::unused;
    std::string exchange{};
    std::deque<Travelling> travelling{};
    std::uint64_t first_tag = 1;  // of `travelling`
    std::size_t returned = 0;     // where to start looking for the next message that is returned
    std::uint64_t used = 0;       // rises with each use

    // The message that the server is returning, frame by frame.
    bool has_given_up = false;  // on a message that the server may still return
    bool is_returning = false, has_header = false;
    std::uint16_t return_code = 0;
    std::string return_text{}, return_exchange{}, return_key{};
    std::uint64_t body_left = 0;
};

class RabbitmqSink final : public Sink {
  public:
    explicit RabbitmqSink(const SinkContext& context)
        : options_(rabbitmq_options(context.destination)),
          clock_(context.clock),
          connection_(amqp_config(options_), clock_),
          encoder_(options_.format, options_.source, options_.max_message_size) {}

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = options_.batch_size,
                .max_batch_bytes = usual_batch_bytes,
                .max_batches = usual_batches,
                .more_batches = usual_batches,
                // The server may take one event of a batch and refuse another.
                .keys = KeyPolicy::one_each,
                .lanes = has_lanes()};
    }

    int descriptor() const noexcept override { return connection_.descriptor(); }

    Micros deadline() const noexcept override {
        if (!outcomes_.empty())
            return 0;
        Micros due = connection_.deadline();
        if (connection_.state() != AmqpConnection::State::ready)
            return due;
        if (!sendings_.empty())
            due = std::min(due, due_at(sendings_.front()->sent_at));
        if (!waiting_.empty())
            due = std::min(due, due_at(waiting_.front().since));
        return due;
    }

    std::size_t size_of(const Event& event) const noexcept override {
        return MessageEncoder::size_of(event);
    }

    void lane_of(const Event& event, std::string& lane) const override {
        options_.exchange.append_to(lane, event, options_.source);
        if (options_.lane_has_routing_key) {
            if (!options_.exchange.empty())
                lane += '/';
            options_.routing_key.append_to(lane, event, options_.source);
        }
    }

    void submit(Batch& batch) override {
        waiting_.push_back({&batch, clock_.now()});
        send_waiting();
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        connection_.step(now);
        while (const std::optional<Frame> frame = connection_.next())
            take(*frame);
        if (connection_.state() == AmqpConnection::State::closed && !connection_.failure().empty())
            give_up();
        give_up_late(now);
        send_waiting();
        give_up_stuck(now);
        for (Outcome& outcome : outcomes_)
            outcomes.push_back(std::move(outcome));
        outcomes_.clear();
    }

  private:
    bool has_lanes() const noexcept {
        return !options_.exchange.is_constant() ||
               (options_.lane_has_routing_key && !options_.routing_key.is_constant());
    }

    // ---------------------------------------------------------------------------------------------
    // Sending
    // ---------------------------------------------------------------------------------------------

    void send_waiting() {
        if (waiting_.empty())
            return;
        if (connection_.state() == AmqpConnection::State::closed && sendings_.empty())
            connection_.open();
        if (connection_.state() != AmqpConnection::State::ready)
            return;
        if (connection_.is_blocked()) {
            for (const Waiting& next : waiting_)
                outcomes_.push_back({.batch = next.batch,
                                     .fate = Fate::throttled,
                                     .error = connection_.blocked_by(),
                                     .retry_after = pause_while_blocked});
            waiting_.clear();
            return;
        }
        bool any = false;
        while (!waiting_.empty() && connection_.unsent() < max_unsent &&
               start(*waiting_.front().batch)) {
            waiting_.pop_front();
            any = true;
        }
        if (any)
            connection_.flush();
    }

    // Returns false if it has to wait for a channel.
    bool start(Batch& batch) {
        std::string exchange, routing_key;
        options_.exchange.append_to(exchange, *batch.events.front(), options_.source);
        if (options_.lane_has_routing_key)
            options_.routing_key.append_to(routing_key, *batch.events.front(), options_.source);
        if (exchange.size() > max_short_string || routing_key.size() > max_short_string) {
            refuse_name(batch);
            return true;
        }
        Channel* channel = channel_for(exchange);
        if (channel == nullptr)
            return false;
        Sending& sending = *sendings_.emplace_back(std::make_unique<Sending>(
            &batch, std::move(exchange), std::move(routing_key), clock_.now()));
        publish(*channel, sending);
        if (sending.left == 0)
            finish(sending);
        return true;
    }

    // A constant name that is too long is the destination's fault, not the event's.
    void refuse_name(Batch& batch) {
        const bool own = has_lanes();
        outcomes_.push_back({.batch = &batch,
                             .fate = own ? Fate::refused : Fate::unavailable,
                             .error = too_long,
                             .permanent = own});
    }

    void publish(Channel& channel, Sending& sending) {
        const std::vector<Event*>& events = sending.batch->events;
        const std::uint16_t number = number_of(channel);
        std::string& out = connection_.output();
        std::string own_key;
        sending.settled.resize(events.size());
        for (std::size_t i = 0; i < events.size(); i++) {
            std::string_view key = sending.routing_key;
            if (!options_.lane_has_routing_key) {
                own_key.clear();
                options_.routing_key.append_to(own_key, *events[i], options_.source);
                key = own_key;
            }
            std::optional<std::string> why =
                key.size() > max_short_string
                    ? std::optional<std::string>(too_long)
                    : encoder_.append(out, number, connection_.max_frame(), sending.exchange, key,
                                      *events[i]);
            if (why) {
                sending.settled[i] = true;
                note(sending, i, {Fate::refused, std::move(*why), true});
                continue;
            }
            channel.travelling.push_back({&sending, static_cast<std::uint32_t>(i),
                                          static_cast<std::uint32_t>(encoder_.body_size())});
            sending.left++;
        }
    }

    // ---------------------------------------------------------------------------------------------
    // Channels
    // ---------------------------------------------------------------------------------------------

    std::uint16_t number_of(const Channel& channel) const noexcept {
        return static_cast<std::uint16_t>(&channel - channels_.data() + 1);
    }

    // Returns nullptr if all channels are in use.
    Channel* channel_for(const std::string& exchange) {
        Channel *unused = nullptr, *idle = nullptr;
        for (Channel& channel : channels_) {
            if (channel.state == Channel::State::open && channel.exchange == exchange) {
                channel.used = ++uses_;
                return &channel;
            }
            if (channel.state == Channel::State::unused && unused == nullptr)
                unused = &channel;
            if (channel.state == Channel::State::open && channel.travelling.empty() &&
                (idle == nullptr || channel.used < idle->used))
                idle = &channel;
        }
        if (unused == nullptr &&
            channels_.size() < std::min<std::size_t>(max_channels, connection_.max_channels())) {
            channels_.reserve(max_channels);  // they must not move
            unused = &channels_.emplace_back();
        }
        if (unused != nullptr) {
            open(*unused, exchange);
        } else if (idle != nullptr) {
            close(*idle);
        }
        return unused;
    }

    // The server handles frames in order, so the sink need not wait for the answers.
    void open(Channel& channel, const std::string& exchange) {
        channel = Channel();
        channel.state = Channel::State::open;
        channel.exchange = exchange;
        channel.used = ++uses_;
        append_channel_open(connection_.output(), number_of(channel));
        amqp_confirm_select_t select{.nowait = 0};
        append_method(connection_.output(), number_of(channel), AMQP_CONFIRM_SELECT_METHOD,
                      &select);
    }

    void close(Channel& channel) {
        channel.state = Channel::State::closing;
        append_channel_close(connection_.output(), number_of(channel));
        connection_.flush();
    }

    // ---------------------------------------------------------------------------------------------
    // Receiving
    // ---------------------------------------------------------------------------------------------

    void malformed() { connection_.fail("the server sent a frame that nobody expects"); }

    void take(const Frame& frame) {
        if (frame.channel > channels_.size() ||
            channels_[frame.channel - 1u].state == Channel::State::unused) {
            malformed();
            return;
        }
        Channel& channel = channels_[frame.channel - 1u];
        if (channel.is_returning) {
            take_returned(channel, frame);
            return;
        }
        switch (AmqpDecoder::number_of(frame)) {
            case AMQP_BASIC_ACK_METHOD: {
                const auto* ack = decode<amqp_basic_ack_t>(frame);
                if (ack != nullptr)
                    confirmed(channel, ack->delivery_tag, ack->multiple != 0, true);
                break;
            }
            case AMQP_BASIC_NACK_METHOD: {
                const auto* nack = decode<amqp_basic_nack_t>(frame);
                if (nack != nullptr)
                    confirmed(channel, nack->delivery_tag, nack->multiple != 0, false);
                break;
            }
            case AMQP_BASIC_RETURN_METHOD: {
                const auto* returned = decode<amqp_basic_return_t>(frame);
                if (returned == nullptr)
                    break;
                channel.is_returning = true;
                channel.has_header = false;
                channel.return_code = returned->reply_code;
                channel.return_text = text_of(returned->reply_text);
                channel.return_exchange = text_of(returned->exchange);
                channel.return_key = text_of(returned->routing_key);
                break;
            }
            case AMQP_CHANNEL_CLOSE_METHOD: {
                const auto* close = decode<amqp_channel_close_t>(frame);
                if (close != nullptr)
                    closed(channel, close->reply_code, text_of(close->reply_text));
                break;
            }
            case AMQP_CHANNEL_CLOSE_OK_METHOD:
                if (channel.state == Channel::State::closing)
                    channel.state = Channel::State::unused;
                else
                    malformed();
                break;
            case AMQP_CHANNEL_OPEN_OK_METHOD:
            case AMQP_CONFIRM_SELECT_OK_METHOD:
                break;
            default:
                malformed();
        }
    }

    template <class Method>
    const Method* decode(const Frame& frame) {
        const Method* method = connection_.decoder().decode<Method>(frame);
        if (method == nullptr)
            malformed();
        return method;
    }

    void confirmed(Channel& channel, std::uint64_t tag, bool multiple, bool taken) {
        const std::uint64_t end = channel.first_tag + channel.travelling.size();
        if (multiple && tag == 0)
            tag = end - 1;  // all that were sent
        if (tag >= end) {
            connection_.fail("the server confirmed a message that was not sent");
            return;
        }
        // The sink may have given up on earlier messages.
        for (std::uint64_t one = multiple ? channel.first_tag : tag; one <= tag; one++)
            if (one >= channel.first_tag)
                settle(channel.travelling[one - channel.first_tag], taken);
        forget_settled(channel);
    }

    void settle(Travelling& message, bool taken) {
        Sending* sending = std::exchange(message.sending, nullptr);
        if (sending == nullptr)
            return;
        sending->settled[message.index] = true;
        if (!taken)
            note(*sending, message.index,
                 verdict_on_nack(sending->exchange, key_of(*sending, message.index),
                                 options_.lane_has_routing_key));
        if (--sending->left == 0)
            finish(*sending);
    }

    void forget_settled(Channel& channel) noexcept {
        while (!channel.travelling.empty() && channel.travelling.front().sending == nullptr) {
            channel.travelling.pop_front();
            channel.first_tag++;
            if (channel.returned > 0)
                channel.returned--;
        }
    }

    std::string key_of(const Sending& sending, std::size_t i) const {
        std::string key;
        options_.routing_key.append_to(key, *sending.batch->events[i], options_.source);
        return key;
    }

    // The header and the body of a returned message follow the method. The event id in the header
    // tells which message it is.
    void take_returned(Channel& channel, const Frame& frame) {
        if (!channel.has_header) {
            const auto* properties =
                connection_.decoder().decode_properties(frame, channel.body_left);
            if (properties == nullptr || !returned(channel, text_of(properties->message_id))) {
                connection_.fail("the server returned a message that was not sent");
                return;
            }
            channel.has_header = true;
        } else if (frame.type != AMQP_FRAME_BODY || frame.payload.size() > channel.body_left) {
            malformed();
            return;
        } else {
            channel.body_left -= frame.payload.size();
        }
        channel.is_returning = channel.body_left > 0;
    }

    bool returned(Channel& channel, std::string_view id) {
        std::string own;
        const std::size_t count = channel.travelling.size();
        for (std::size_t n = 0; n < count; n++) {
            const std::size_t i = (channel.returned + n) % count;
            const Travelling& message = channel.travelling[i];
            if (message.sending == nullptr)
                continue;
            own.clear();
            append_uuid(own, message.sending->batch->events[message.index]->event_id);
            if (own != id)
                continue;
            channel.returned = i + 1;
            note(
                *message.sending, message.index,
                verdict_on_return(channel.return_code, channel.return_text, channel.return_exchange,
                                  channel.return_key, options_.lane_has_routing_key));
            return true;
        }
        return channel.has_given_up;
    }

    // ---------------------------------------------------------------------------------------------
    // Outcomes
    // ---------------------------------------------------------------------------------------------

    static void note(Sending& sending, std::size_t i, EventOutcome outcome) {
        sending.outcomes.resize(sending.batch->events.size());
        // The first outcome counts: a message that was returned is confirmed afterwards.
        if (sending.outcomes[i].fate == Fate::confirmed)
            sending.outcomes[i] = std::move(outcome);
    }

    void report_outcome(Sending& sending) {
        Outcome outcome{.batch = sending.batch};
        if (!sending.outcomes.empty()) {
            const EventOutcome& first = sending.outcomes.front();
            const bool all_alike =
                first.fate != Fate::refused &&
                std::all_of(sending.outcomes.begin(), sending.outcomes.end(),
                            [&](const EventOutcome& own) { return own.fate == first.fate; });
            outcome.fate = first.fate;
            outcome.error = first.error;
            outcome.permanent = first.permanent;
            outcome.scope = first.scope;
            if (!all_alike)
                outcome.of_events = std::move(sending.outcomes);
        }
        outcomes_.push_back(std::move(outcome));
    }

    void finish(Sending& sending) {
        report_outcome(sending);
        std::erase_if(sendings_, [&](const auto& one) { return one.get() == &sending; });
    }

    // Ends a batch with this outcome for its unsettled events.
    void end(Sending& sending, const EventOutcome& others) {
        for (std::size_t i = 0; i < sending.settled.size(); i++)
            if (!sending.settled[i])
                note(sending, i, others);
        report_outcome(sending);
    }

    // The server has closed the channel. It may have taken messages that it has not confirmed.
    void closed(Channel& channel, std::uint16_t code, std::string_view text) {
        const ChannelVerdict verdict = verdict_on_close(code, text, options_.lane_has_routing_key);
        const bool names_one = verdict.body_size || verdict.routing_key;
        bool found = false;
        for (const Travelling& message : channel.travelling)
            found |= message.sending != nullptr && names_one && is_meant(message, verdict);
        const EventOutcome others = found       ? EventOutcome{Fate::undone, verdict.outcome.error}
                                    : names_one ? EventOutcome{Fate::failed, verdict.outcome.error}
                                                : verdict.outcome;
        for (Travelling& message : channel.travelling) {
            Sending* sending = std::exchange(message.sending, nullptr);
            if (sending == nullptr)
                continue;
            note(*sending, message.index,
                 found && is_meant({sending, message.index, message.body_size}, verdict)
                     ? verdict.outcome
                     : others);
            if (--sending->left == 0)
                finish(*sending);
        }
        append_channel_close_ok(connection_.output(), number_of(channel));
        connection_.flush();
        channel = Channel();
    }

    bool is_meant(const Travelling& message, const ChannelVerdict& verdict) const {
        return verdict.body_size ? message.body_size == *verdict.body_size
                                 : key_of(*message.sending, message.index) == *verdict.routing_key;
    }

    // Time in which the server blocked the connection does not count.
    Micros due_at(Micros since) const noexcept {
        return std::max(since, connection_.unblocked_at()) + options_.transport.request_timeout;
    }

    void give_up_late(Micros now) {
        if (sendings_.empty() || now < due_at(sendings_.front()->sent_at))
            return;
        const EventOutcome late =
            connection_.is_blocked()
                ? EventOutcome{Fate::throttled, connection_.blocked_by()}
                : EventOutcome{Fate::failed, no_answer_within(options_.transport.request_timeout)};
        if (!connection_.is_blocked() &&
            connection_.heard_at() <= sendings_.front()->sent_at) {  // the server is silent
            connection_.fail(late.error);
            give_up();
            return;
        }
        // The server still confirms other messages. A later confirmation of these is ignored.
        while (!sendings_.empty() && now >= due_at(sendings_.front()->sent_at)) {
            for (Channel& channel : channels_) {
                for (Travelling& message : channel.travelling)
                    if (message.sending == sendings_.front().get()) {
                        message.sending = nullptr;
                        channel.has_given_up = true;
                    }
                forget_settled(channel);
            }
            end(*sendings_.front(), late);
            sendings_.pop_front();
        }
    }

    // The server does not read, or does not close a channel.
    void give_up_stuck(Micros now) {
        if (waiting_.empty() || connection_.state() != AmqpConnection::State::ready ||
            connection_.is_blocked() || now < due_at(waiting_.front().since))
            return;
        connection_.fail(no_answer_within(options_.transport.request_timeout));
        give_up();
    }

    // The connection has ended.
    void give_up() {
        const std::string& why = connection_.failure();
        channels_.clear();
        // The server may have taken what was sent. One batch that reports the failure is enough.
        Fate fate = connection_.was_dismissed() ? Fate::unavailable : Fate::failed;
        for (const auto& sending : sendings_) {
            end(*sending, {fate, why, false, connection_.scope()});
            fate = Fate::undone;
        }
        sendings_.clear();
        for (const Waiting& next : waiting_)
            outcomes_.push_back({.batch = next.batch,
                                 .fate = Fate::unavailable,
                                 .error = why,
                                 .scope = connection_.scope()});
        waiting_.clear();
        connection_.forget_failure();
    }

    static constexpr const char* too_long =
        "the name of an exchange or the routing key has more than 255 bytes";

    const RabbitmqOptions options_;
    const Clock& clock_;
    AmqpConnection connection_;
    MessageEncoder encoder_;

    std::deque<Waiting> waiting_;
    std::deque<std::unique_ptr<Sending>> sendings_;
    std::vector<Channel> channels_;  // in the order of their numbers, which begin with 1
    std::uint64_t uses_ = 0;
    std::vector<Outcome> outcomes_;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::RabbitmqSink(context);
    });
}
