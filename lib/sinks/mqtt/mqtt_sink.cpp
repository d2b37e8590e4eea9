// The mqtt sink: each event is a message, and a batch is settled when the broker has answered for
// every one of them. There is one connection, with as many messages in flight as the broker's
// receive maximum allows.
//
// A broker processes the messages of a connection in order, and answers for each of them. It may
// take one and refuse the one before, so a batch has one event of a key (KeyPolicy::one_each).
//
// When a connection ends, or an answer does not come, it is unknown which messages in flight have
// arrived. Brokers answer in order, so the oldest one is the event that failed. The others are
// undone, and sent again over the next connection. The next connection has the same client id, so
// the broker ends the former one before it accepts it, and delivers nothing more from the former
// one.
//
// With QoS 2 the next connection resumes the session, and sends unanswered messages under their old
// numbers, so that the broker recognizes those that it has. If it has lost the session, it is
// unknown which of them have arrived.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "core/late.hpp"
#include "core/sink.hpp"
#include "net/transport.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/mqtt/connection.hpp"
#include "sinks/mqtt/message.hpp"

namespace outbox {

namespace {

constexpr std::size_t batches_in_flight = 16;
constexpr std::size_t usual_batch_bytes = 1024 * 1024;
constexpr std::size_t max_flights = 16'384;
constexpr std::size_t max_unsent = 1024 * 1024;  // bytes that the broker has not taken
constexpr unsigned last_id = 65'535;             // of messages; they count from 1
// Pause between attempts to resume a session.
constexpr Micros pause_to_resume = milliseconds(200);
// Pause after another client has taken the client id. Some brokers do not say that this is why they
// end a connection, so the sink also assumes it after several connections that did not last.
constexpr Micros first_truce = seconds(1);
constexpr Micros max_truce = seconds(10);
constexpr Micros short_life = seconds(10);
constexpr unsigned max_short_lives = 10;
constexpr std::size_t max_lines = 8;

// A batch that is not settled.
struct Sending {
    Batch* batch;
    std::size_t next = 0;  // index of the first event that has not been sent
    std::size_t left;      // events without an outcome
    // Empty while all outcomes are Fate::confirmed.
    std::vector<EventOutcome> outcomes{};
    std::size_t confirmed = 0;
};

// A message that was sent.
struct Flight {
    enum class State : std::uint8_t {
        published,
        received,  // QoS 2: the broker has it, and may deliver it to subscribers
        done,
    };
    Sending* sending;
    std::size_t index;  // of its event
    Micros sent_at;
    State state = State::published;
    bool unheard = false;  // QoS 2: no client has subscribed to the topic
};

class MqttSink final : public Sink {
  public:
    explicit MqttSink(const SinkContext& context)
        : options_(mqtt_options(context.destination)),
          clock_(context.clock),
          own_topics_(!options_.topic.needs_only_topic()),
          message_(options_),
          connection_(options_, clock_) {}

    ~MqttSink() override { connection_.close(); }

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = options_.batch_size,
                .max_batch_bytes = usual_batch_bytes,
                .max_batches = batches_in_flight,
                .keys = KeyPolicy::one_each,
                .lanes = true};
    }

    int descriptor() const noexcept override { return connection_.descriptor(); }

    Micros deadline() const noexcept override {
        if (!outcomes_.empty() || connection_.state() == MqttConnection::State::failed)
            return 0;
        return std::min({connection_.deadline(), late_at(), reopen_at_});
    }

    std::size_t size_of(const Event& event) const noexcept override {
        return MqttMessage::size_of(event);
    }

    void lane_of(const Event& event, std::string& lane) const override { lane += event.topic; }

    void submit(Batch& batch) override {
        const Micros now = clock_.now();
        if (now < truce_until_) {
            outcomes_.push_back({.batch = &batch,
                                 .fate = Fate::unavailable,
                                 .error = truce_why_,
                                 .retry_after = truce_until_ - now});
            return;
        }
        sendings_.push_back(
            std::make_unique<Sending>(Sending{.batch = &batch, .left = batch.events.size()}));
        waiting_.push_back(sendings_.back().get());
        send_waiting(now);
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        if (now >= reopen_at_) {
            reopen_at_ = never;
            connection_.open(true);
        }
        connection_.step(now);
        take_answers(now);
        if (connection_.state() == MqttConnection::State::failed)
            lost(now);
        if (now >= late_at())
            give_up_late(now);
        if (resuming_ && connection_.state() == MqttConnection::State::ready)
            resume();
        send_waiting(now);
        for (Outcome& outcome : outcomes_)
            outcomes.push_back(std::move(outcome));
        outcomes_.clear();
    }

    bool report(SinkReport& report) override {
        report.lines.swap(lines_);
        lines_.clear();
        return false;
    }

  private:
    // -- sending ----------------------------------------------------------------------------------

    void send_waiting(Micros now) {
        if (!waiting_.empty() && connection_.state() == MqttConnection::State::closed && !resuming_)
            connection_.open();
        if (connection_.state() != MqttConnection::State::ready || resuming_)
            return;
        while (!waiting_.empty() && has_room()) {
            while (!waiting_.empty() && has_room())
                send_next(*waiting_.front(), now);
            connection_.flush();
        }
    }

    bool has_room() const noexcept {
        return in_flight_ < connection_.limits().receive_maximum && flights_.size() < max_flights &&
               connection_.unsent() < max_unsent;
    }

    void send_next(Sending& sending, Micros now) {
        const std::size_t index = sending.next++;
        if (sending.next == sending.batch->events.size())
            waiting_.pop_front();
        std::optional<std::string> why = message_.assign(*sending.batch->events[index]);
        const MqttPublish publish = publish_of(next_id(), false);
        if (const std::size_t size = size_of_publish(publish);
            !why && size > connection_.limits().max_packet_size)
            why = "the message has " + std::to_string(size) + " bytes, the broker takes at most " +
                  std::to_string(connection_.limits().max_packet_size);
        if (why) {
            settle(sending, index, {Fate::refused, std::move(*why), true});
            if (sending.left == 0)
                finish(sending);
            return;
        }
        append_publish(connection_.output(), publish);
        flights_.push_back({&sending, index, now});
        in_flight_++;
    }

    // The message is the one that was assigned last.
    MqttPublish publish_of(unsigned id, bool again) const noexcept {
        return {.topic = message_.topic(),
                .properties = message_.properties(),
                .payload = message_.payload(),
                .id = static_cast<std::uint16_t>(id),
                .qos = options_.qos,
                .retain = options_.retain,
                .again = again};
    }

    unsigned id_of(std::size_t flight) const noexcept {
        return static_cast<unsigned>((first_id_ - 1 + flight) % last_id) + 1;
    }
    unsigned next_id() const noexcept { return id_of(flights_.size()); }

    // -- answers ----------------------------------------------------------------------------------

    void take_answers(Micros now) {
        while (const std::optional<MqttAck> ack = connection_.take(now))
            take(*ack);
        if (connection_.state() == MqttConnection::State::ready && connection_.unsent() > 0)
            connection_.flush();
    }

    void take(const MqttAck& ack) {
        const std::size_t number = (ack.id + last_id - first_id_) % last_id;
        if (ack.id == 0 || number >= flights_.size() ||
            ack.type != expected(flights_[number].state)) {
            // When a session resumes, mochi repeats earlier acknowledgements.
            if (!connection_.session_present() || ack.type == MqttType::puback)
                connection_.fail("the broker sent an answer to a message that is not in flight");
            return;
        }
        Flight& flight = flights_[number];
        if (ack.type == MqttType::pubrec && ack.code < mqtt_reason::first_failure) {
            flight.state = Flight::State::received;
            flight.unheard = ack.code == mqtt_reason::no_matching_subscribers;
            append_pubrel(connection_.output(), ack.id);
            return;
        }
        std::uint8_t code = ack.code;
        if (ack.type == MqttType::pubcomp) {
            // In a resumed session, a broker has already delivered a message whose number it does
            // not know.
            if (code == mqtt_reason::packet_id_not_found && connection_.session_present())
                code = mqtt_reason::success;
            if (code < mqtt_reason::first_failure)
                code = flight.unheard ? mqtt_reason::no_matching_subscribers : mqtt_reason::success;
        }
        answered(flight, code, ack.reason);
    }

    MqttType expected(Flight::State state) const noexcept {
        return state == Flight::State::received ? MqttType::pubcomp
               : state == Flight::State::done   ? MqttType{}
               : options_.qos == 2              ? MqttType::pubrec
                                                : MqttType::puback;
    }

    void answered(Flight& flight, std::uint8_t code, std::string_view said) {
        Sending& sending = *flight.sending;
        const MqttVerdict verdict =
            verdict_on_publish(code, options_.needs_subscribers, own_topics_);
        EventOutcome outcome{verdict.fate, "", verdict.permanent, verdict.scope};
        if (verdict.fate != Fate::confirmed) {
            refused_some_ = true;
            std::string topic;
            options_.topic.append_to(topic, *sending.batch->events[flight.index], options_.source);
            outcome.error = "topic \"" + topic + "\": " + describe_reason(code, said);
        }
        settle(sending, flight.index, std::move(outcome));
        flight.state = Flight::State::done;
        in_flight_--;
        while (!flights_.empty() && flights_.front().state == Flight::State::done) {
            flights_.pop_front();
            first_id_ = first_id_ % last_id + 1;
        }
        if (sending.left == 0)
            finish(sending);
    }

    // -- connections that end ---------------------------------------------------------------------

    Micros late_at() const noexcept {
        if (flights_.empty())
            return never;
        const Micros answer = flights_.front().sent_at + options_.transport.request_timeout;
        return resuming_ ? std::min(answer, lost_at_ + options_.transport.connect_timeout) : answer;
    }

    void lost(Micros now) {
        MqttFailure failure = connection_.failure();
        const bool is_short = failure.connected && failure.code == 0 &&
                              !std::exchange(refused_some_, false) &&
                              now < connection_.ready_since() + short_life;
        connection_.close();
        short_lives_ = is_short ? short_lives_ + 1 : failure.connected ? 0 : short_lives_;
        if (failure.code == mqtt_reason::session_taken_over) {
            begin_truce(now, failure.why);
        } else if (short_lives_ >= max_short_lives) {
            failure.why +=
                "; several connections ended soon: another client of the broker may "
                "have the client id \"" +
                options_.client_id + "\" (client_id)";
            failure.verdict = {Fate::unavailable, Scope::destination};
            begin_truce(now, failure.why);
        }
        if (now >= truce_until_ && may_resume(failure)) {
            if (!std::exchange(resuming_, true))
                lost_at_ = now;
            trouble_ = failure;
            reopen_at_ = failure.connected ? now : now + pause_to_resume;
            return;
        }
        if (failure.code != 0 && flights_.empty() && lines_.size() < max_lines)
            lines_.push_back(failure.why);
        give_up(failure, now);
    }

    // It must not resume if the broker ended the connection for a reason that would come again.
    bool may_resume(const MqttFailure& failure) const noexcept {
        return options_.qos == 2 && !flights_.empty() &&
               failure.verdict.scope == Scope::connection &&
               (failure.code == 0 || failure.verdict.fate == Fate::unavailable);
    }

    void give_up_late(Micros now) {
        MqttFailure failure{.why = no_answer_within(options_.transport.request_timeout),
                            .verdict = {Fate::failed, Scope::connection},
                            .connected = true};
        if (resuming_)
            failure = trouble_;
        connection_.close();
        give_up(failure, now);
    }

    void begin_truce(Micros now, const std::string& why) {
        const bool is_first = truce_until_ == 0 || now > truce_until_ + max_truce;
        truce_ = is_first ? first_truce : std::min(2 * truce_, max_truce);
        truce_until_ = now + truce_;
        truce_why_ = why;
    }

    // Sends the unanswered messages again, over a new connection.
    void resume() {
        resuming_ = false;
        const bool too_many = in_flight_ > connection_.limits().receive_maximum;
        if (!connection_.session_present() || too_many) {
            give_up({.why = trouble_.why + "; the broker has not kept the session",
                     .verdict = {Fate::failed, Scope::connection},
                     .connected = true},
                    clock_.now());
            if (too_many)
                connection_.close();
            return;
        }
        for (std::size_t i = 0; i < flights_.size(); i++) {
            const Flight& flight = flights_[i];
            if (flight.state == Flight::State::received) {
                append_pubrel(connection_.output(), static_cast<std::uint16_t>(id_of(i)));
            } else if (flight.state == Flight::State::published) {
                message_.assign(*flight.sending->batch->events[flight.index]);
                append_publish(connection_.output(), publish_of(id_of(i), true));
            }
        }
        connection_.flush();
    }

    // Reports everything that is in flight, and if there was no connection, also what waits for
    // one.
    void give_up(const MqttFailure& failure, Micros now) {
        resuming_ = false;
        reopen_at_ = never;
        const bool all = !failure.connected || now < truce_until_;
        const EventOutcome blame = outcome_of(failure);
        Sending* const blamed = !flights_.empty()           ? flights_.front().sending
                                : all && !sendings_.empty() ? sendings_.front().get()
                                                            : nullptr;
        bool told = false;
        const auto settle_as_lost = [&](Sending& sending, std::size_t index) {
            const bool is_blamed = &sending == blamed && !std::exchange(told, true);
            settle(sending, index, is_blamed ? blame : EventOutcome{Fate::undone, failure.why});
        };
        for (const Flight& flight : flights_)
            if (flight.state != Flight::State::done)
                settle_as_lost(*flight.sending, flight.index);
        first_id_ = next_id();
        flights_.clear();
        in_flight_ = 0;
        std::vector<Sending*> given_up;
        for (const auto& sending : sendings_) {
            if (!all && sending->next == 0)
                continue;
            for (std::size_t i = sending->next; i < sending->batch->events.size(); i++)
                settle_as_lost(*sending, i);
            if (sending.get() != blamed)
                given_up.push_back(sending.get());
        }
        std::erase_if(waiting_, [&](const Sending* sending) { return sending->left == 0; });
        for (Sending* sending : given_up)
            finish(*sending);
        if (blamed != nullptr)  // finished last, when nothing is in flight
            finish(*blamed, &blame, now < truce_until_ ? truce_until_ - now : 0);
    }

    EventOutcome outcome_of(const MqttFailure& failure) const {
        MqttVerdict verdict = failure.verdict;
        // Only one message can be the cause.
        if (const MqttVerdict own =
                verdict_on_publish(failure.code, options_.needs_subscribers, own_topics_);
            in_flight_ == 1 && own.permanent)
            verdict = own;
        return {verdict.fate, failure.why, verdict.permanent, verdict.scope};
    }

    // -- outcomes ---------------------------------------------------------------------------------

    static void settle(Sending& sending, std::size_t index, EventOutcome outcome) {
        sending.left--;
        if (outcome.fate == Fate::confirmed) {
            sending.confirmed++;
            return;
        }
        if (sending.outcomes.empty())
            sending.outcomes.resize(sending.batch->events.size());
        sending.outcomes[index] = std::move(outcome);
    }

    // If `blame` is set, the batch has failed as a whole for this reason, unless an event of it was
    // confirmed or refused.
    void finish(Sending& sending, const EventOutcome* blame = nullptr, Micros retry_after = 0) {
        Outcome outcome{.batch = sending.batch, .retry_after = retry_after};
        if (!sending.outcomes.empty()) {
            const auto refused = [](const EventOutcome& own) { return own.fate == Fate::refused; };
            const EventOutcome first = blame != nullptr ? *blame : sending.outcomes.front();
            const bool alike = std::all_of(sending.outcomes.begin(), sending.outcomes.end(),
                                           [&](const EventOutcome& own) {
                                               return own.fate == first.fate || blame != nullptr;
                                           });
            const bool some_refused =
                std::any_of(sending.outcomes.begin(), sending.outcomes.end(), refused);
            if (sending.outcomes.size() == 1 ||
                (alike && sending.confirmed == 0 && !some_refused)) {
                outcome.fate = first.fate;
                outcome.error = first.error;
                outcome.permanent = first.permanent;
                outcome.scope = first.scope;
            } else {
                outcome.of_events = std::move(sending.outcomes);
            }
        }
        outcomes_.push_back(std::move(outcome));
        std::erase_if(sendings_, [&](const auto& one) { return one.get() == &sending; });
    }

    const MqttOptions options_;
    const Clock& clock_;
    const bool own_topics_;  // events of a lane may have different topics
    MqttMessage message_;
    MqttConnection connection_;

    std::deque<std::unique_ptr<Sending>> sendings_;  // in the order of submission
    std::deque<Sending*> waiting_;                   // those with events that were not sent
    std::deque<Flight> flights_;  // in the order of sending; the first one is not done
    unsigned first_id_ = 1;       // of flights_; the others have the numbers after it
    std::size_t in_flight_ = 0;   // flights that are not done

    bool resuming_ = false;  // flights are from an earlier connection
    MqttFailure trouble_;    // why they could not be settled; only if resuming_
    Micros lost_at_ = 0;     // only if resuming_
    Micros reopen_at_ = never;
    Micros truce_ = first_truce, truce_until_ = 0;
    std::string truce_why_;
    unsigned short_lives_ = 0;  // connections in a row that did not last
    // The broker has refused a message since the last connection ended, and may end this one for
    // it.
    bool refused_some_ = false;
    std::vector<std::string> lines_;
    std::vector<Outcome> outcomes_;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::MqttSink(context);
    });
}
