// The nats sink: each event of a batch is a message, and the batch is settled when JetStream has
// answered every one of them.
//
// There is one connection. Messages are written one after another, without waiting for answers.
// Each message names the subject of its answer, which tells which message an answer belongs to. A
// server handles the messages of a connection in order, but a stream may take one and refuse the
// one before it. So a batch has one event of a key, and the pipeline sends the next one when this
// one is settled.
//
// An event has failed if it has no answer within request_timeout, or when the connection ends. It
// is sent again with the same id, by which the stream recognizes it.
//
// If a permission is missing, the server sends an error that has no reply subject, but names the
// subject of the message. That ends all events with this subject that wait for an answer.
#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_set>

#include "core/late.hpp"
#include "core/sink.hpp"
#include "core/text.hpp"
#include "net/nats/nats_inbox.hpp"
#include "net/transport.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/nats/message.hpp"
#include "sinks/nats/session.hpp"
#include "sinks/nats/subject.hpp"
#include "sinks/nats/verdict.hpp"

namespace outbox {

namespace {

// A batch with events that have no answer yet.
struct Sending {
    Batch* batch = nullptr;
    std::uint64_t first = 0;  // number of its first event's request; those of the others follow
    Micros sent_at = 0;
    std::size_t unanswered = 0;
    std::vector<bool> answered{};
    std::vector<EventOutcome> outcomes{};
    std::vector<std::string> message_ids{};

    std::uint64_t end() const noexcept { return first + batch->events.size(); }
    void answer(std::size_t i, EventOutcome outcome) {
        if (answered[i])
            return;
        answered[i] = true;
        unanswered--;
        outcomes[i] = std::move(outcome);
    }
};

class NatsSink final : public Sink, NatsListener {
  public:
    NatsSink(const NatsOptions& options, const Clock& clock)
        : options_(options),
          clock_(clock),
          encoder_(options.format, options.source),
          inbox_(options.inbox_prefix) {
        Result<NatsConfig> config = nats_config(options_);
        if (config)
            connection_.emplace(std::move(config.value()), clock);
        else
            unusable_ = config.error().message;
    }

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = options_.batch_size,
                .max_batch_bytes = 1024 * 1024,
                .max_batches = 16,
                // A stream may take an event although it refused the one before it.
                .keys = KeyPolicy::one_each,
                .lanes = true};
    }

    int descriptor() const noexcept override {
        return connection_ ? connection_->descriptor() : -1;
    }

    Micros deadline() const noexcept override {
        if (!outcomes_.empty())
            return 0;
        Micros due = connection_ ? connection_->deadline() : never;
        if (!sendings_.empty())
            due = std::min(due, late_at(*sendings_.front()));
        return due;
    }

    std::size_t size_of(const Event& event) const noexcept override {
        return NatsEncoder::size_of(event);
    }

    void lane_of(const Event& event, std::string& lane) const override {
        if (options_.stream.empty())
            lane += event.topic;
        else
            options_.stream.append_to(lane, event, options_.source);
    }

    void submit(Batch& batch) override {
        if (!connection_) {
            outcomes_.push_back({&batch, Fate::unavailable, unusable_});
            return;
        }
        if (connection_->state() == NatsConnection::State::ready) {
            send(batch);
            return;
        }
        if (connection_->state() == NatsConnection::State::closed)
            connection_->open(inbox_.subscription());
        waiting_.push_back(&batch);
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        if (connection_) {
            connection_->step(now, *this);
            end_denied();
            if (connection_->state() == NatsConnection::State::ready)
                send_waiting();
            else if (!connection_->failure().empty())
                end_all(connection_->failure(), connection_->scope());
            end_late(now);
        }
        std::move(outcomes_.begin(), outcomes_.end(), std::back_inserter(outcomes));
        outcomes_.clear();
    }

  private:
    // ---- sending --------------------------------------------------------------------------------

    void send_waiting() {
        for (; !waiting_.empty(); waiting_.pop_front())
            send(*waiting_.front());
    }

    void send(Batch& batch) {
        auto sending = std::make_unique<Sending>();
        const std::size_t count = batch.events.size();
        sending->batch = &batch;
        sending->first = next_request_;
        sending->sent_at = clock_.now();
        sending->unanswered = count;
        sending->answered.resize(count);
        sending->outcomes.resize(count);
        if (options_.receipts)
            sending->message_ids.resize(count);
        next_request_ += count;
        for (std::size_t i = 0; i < count; i++)
            if (std::optional<EventOutcome> outcome = write(*batch.events[i], sending->first + i))
                sending->answer(i, std::move(*outcome));
        connection_->flush();
        if (sending->unanswered == 0)
            finish(*sending);
        else
            sendings_.push_back(std::move(sending));
    }

    // Returns the outcome of an event that cannot be sent.
    std::optional<EventOutcome> write(const Event& event, std::uint64_t request) {
        subject_.clear();
        append_subject(subject_, options_.subject, event, options_.source);
        if (std::optional<std::string> why = invalid_subject(subject_, options_.may_use_dollar))
            return refused(std::move(*why));
        stream_.clear();
        options_.stream.append_to(stream_, event, options_.source);
        NatsEncoder::Demands demands{.stream = stream_};
        if (const Header* header = sequence_of(event)) {
            if (!expected_sequence(event))
                return refused("header \"" + options_.sequence_header + "\" is not a sequence");
            demands.last_sequence = header->value;
        }
        encoder_.encode(event, demands);
        if (encoder_.size() > connection_->server().max_payload)
            return refused("the message has " + std::to_string(encoder_.size()) +
                           " bytes, the server takes at most " +
                           std::to_string(connection_->server().max_payload) + " (max_payload)");
        reply_.clear();
        inbox_.append_reply(reply_, request);
        encoder_.append(connection_->output(), subject_, reply_);
        return std::nullopt;
    }

    static EventOutcome refused(std::string why) {
        return {.fate = Fate::refused, .error = std::move(why), .permanent = true};
    }

    const Header* sequence_of(const Event& event) const noexcept {
        if (options_.sequence_header.empty())
            return nullptr;
        for (const Header& header : event.headers)
            if (header.kind != Header::Kind::null && header.name == options_.sequence_header)
                return &header;
        return nullptr;
    }

    std::optional<std::uint64_t> expected_sequence(const Event& event) const noexcept {
        const Header* const header = sequence_of(event);
        const auto value = header != nullptr ? parse_integer(header->value) : std::nullopt;
        return value && *value >= 0 ? std::optional(static_cast<std::uint64_t>(*value))
                                    : std::nullopt;
    }

    // ---- answers --------------------------------------------------------------------------------

    void on_message(const NatsInput& message) override {
        const std::optional<std::uint64_t> request = inbox_.request_of(message);
        if (!request)
            return;
        const auto found = sending_of(*request);
        if (found == sendings_.end())
            return;
        Sending& sending = **found;
        const std::size_t i = *request - sending.first;
        if (sending.answered[i])
            return;
        const Event& event = *sending.batch->events[i];
        subject_.clear();
        append_subject(subject_, options_.subject, event, options_.source);
        NatsVerdict verdict = verdict_of(message, subject_, expected_sequence(event));
        if (!sending.message_ids.empty() && verdict.outcome.fate == Fate::confirmed)
            sending.message_ids[i] =
                printable(verdict.stream, 255) + ':' + std::to_string(verdict.sequence);
        sending.answer(i, std::move(verdict.outcome));
        if (sending.unanswered == 0) {
            finish(sending);
            sendings_.erase(found);
        }
    }

    using Sendings = std::deque<std::unique_ptr<Sending>>;

    Sendings::iterator sending_of(std::uint64_t request) noexcept {
        const auto found = std::partition_point(
            sendings_.begin(), sendings_.end(),
            [&](const std::unique_ptr<Sending>& one) { return one->end() <= request; });
        return found != sendings_.end() && (*found)->first <= request ? found : sendings_.end();
    }

    // The text is 'Permissions Violation for Publish to "<subject>"'. A server may send many, so
    // the events are looked up once, after the input has been read.
    void on_error(std::string_view text) override {
        const std::size_t begin = text.find('"'), end = text.rfind('"');
        if (begin != std::string_view::npos && end > begin)
            denied_.emplace(text.substr(begin + 1, end - begin - 1));
    }

    // Returns the subject as the server writes it in its error.
    static std::string quoted(std::string_view subject) {
        std::string text;
        for (const char c : subject) {
            if (c == '"' || c == '\\')
                text += '\\';
            text += c;
        }
        return text;
    }

    void end_denied() {
        if (denied_.empty())
            return;
        end_each([&](Sending& sending, std::size_t i) {
            subject_.clear();
            append_subject(subject_, options_.subject, *sending.batch->events[i], options_.source);
            if (denied_.contains(quoted(subject_)))
                sending.answer(i, {.fate = Fate::unavailable,
                                   .error = "subject \"" + printable(subject_, 300) +
                                            "\": the user may not publish to it (Permissions "
                                            "Violation)",
                                   .scope = Scope::lane});
        });
        denied_.clear();
    }

    // Calls end(sending, i) for each event without an answer.
    template <class End>
    void end_each(End end) {
        for (const auto& sending : sendings_) {
            for (std::size_t i = 0; i < sending->answered.size(); i++)
                if (!sending->answered[i])
                    end(*sending, i);
            if (sending->unanswered == 0)
                finish(*sending);
        }
        std::erase_if(sendings_, [](const auto& one) { return one->unanswered == 0; });
    }

    // ---- no answer ------------------------------------------------------------------------------

    Micros late_at(const Sending& sending) const noexcept {
        return sending.sent_at + options_.transport.request_timeout;
    }

    void end_late(Micros now) {
        if (sendings_.empty() || now < late_at(*sendings_.front()))
            return;
        const std::string why = no_answer_within(options_.transport.request_timeout);
        if (connection_->received_at() < sendings_.front()->sent_at) {
            connection_->close();  // the server is silent
            end_all(why, Scope::connection);
            return;
        }
        end_each([&](Sending& sending, std::size_t i) {
            if (now >= late_at(sending))
                sending.answer(i, {.fate = Fate::failed, .error = why});
        });
    }

    void end_all(const std::string& why, Scope scope) {
        for (Batch* batch : waiting_) {
            Outcome outcome{batch, Fate::unavailable, why};
            outcome.scope = scope;
            outcomes_.push_back(std::move(outcome));
        }
        waiting_.clear();
        end_each([&](Sending& sending, std::size_t i) {
            sending.answer(i, {.fate = Fate::failed, .error = why});
        });
    }

    void finish(Sending& sending) {
        Outcome outcome{.batch = sending.batch};
        outcome.message_ids = std::move(sending.message_ids);
        const auto bad =
            std::find_if(sending.outcomes.begin(), sending.outcomes.end(),
                         [](const EventOutcome& one) { return one.fate != Fate::confirmed; });
        if (bad != sending.outcomes.end()) {
            outcome.fate = bad->fate;
            outcome.error = bad->error;
            outcome.permanent = bad->permanent;
            outcome.scope = bad->scope;
            if (sending.outcomes.size() > 1)
                outcome.of_events = std::move(sending.outcomes);
        }
        outcomes_.push_back(std::move(outcome));
    }

    const NatsOptions options_;
    const Clock& clock_;
    NatsEncoder encoder_;
    const NatsInbox inbox_;
    std::string unusable_;  // why there can be no connection
    std::optional<NatsConnection> connection_;
    std::uint64_t next_request_ = 1;

    std::deque<Batch*> waiting_;  // wait for the connection
    Sendings sendings_;           // in the order of their requests
    std::vector<Outcome> outcomes_;
    std::unordered_set<std::string> denied_;  // subjects, as the server quotes them
    std::string subject_, stream_, reply_;    // scratch space
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::NatsSink(outbox::nats_options(context.destination), context.clock);
    });
}
