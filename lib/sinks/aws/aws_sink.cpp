// The sqs and sns sinks. A batch is one request of up to ten entries to one queue or topic. The
// answer has a result for each entry.
#include <unordered_map>

#include "cloud/aws/aws_credentials.hpp"
#include "cloud/aws/aws_service.hpp"
#include "cloud/aws/batch_answer.hpp"
#include "cloud/aws/sns_protocol.hpp"
#include "cloud/aws/sqs_protocol.hpp"
#include "sinks/aws/aws_message.hpp"
#include "sinks/aws/options.hpp"
#include "sinks/aws/sns_batch.hpp"
#include "sinks/aws/sqs_batch.hpp"
#include "sinks/aws/target_names.hpp"
#include "sinks/cloudevents.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/request_sink.hpp"

namespace outbox {

namespace {

constexpr std::size_t most_entries = 10;

class AwsSink : public RequestSink {
  public:
    Capabilities capabilities() const noexcept final {
        return {.max_batch_events = batch_size_,
                .max_batch_bytes = service_.traits().most_bytes,
                .max_batches = connections(),
                .more_batches = more_connections(),
                // An entry of a group may be accepted although the one before it was not.
                .keys = style_.fifo ? KeyPolicy::one_each : KeyPolicy::mixed,
                .lanes = !names_.is_constant()};
    }

    std::size_t size_of(const Event& event) const noexcept final {
        return message_size_bound(event, style_);
    }

    void lane_of(const Event& event, std::string& lane) const final { names_.append(lane, event); }

  protected:
    AwsSink(const AwsSinkOptions& options, const Clock& clock)
        : RequestSink(clock, options.transport),
          names_(options.target, options.source),
          service_(options.kind, options.aws),
          style_{options.format, names_.fifo(), source_prefix(options.source)},
          batch_size_(std::min(options.batch_size, most_entries)),
          receipts_(options.receipts) {
        auto credentials =
            std::make_unique<AwsCredentials>(options.aws, options.transport.request_timeout, clock);
        credentials_ = credentials.get();
        use(service_.url(), std::move(credentials));
    }

    std::string address_of(const std::string& name) const { return service_.address_of(name); }

    std::string name_of(const Exchange& exchange) const {
        std::string name;
        names_.append(name, *exchange.batch->events.front());
        return name;
    }

    // Makes the request that sends the batch to this queue or topic, or returns the outcome if it
    // cannot be sent.
    std::optional<Outcome> make_batch(Exchange& exchange, const std::string& address) {
        const std::vector<Event*>& events = exchange.batch->events;
        std::string& body = exchange.content.buffer;
        body.clear();
        begin_batch(body, address);
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < events.size(); i++) {
            message_.assign(*events[i], style_);
            if (const std::string_view name = message_.illegal_attribute(); !name.empty())
                return refused(exchange, "attribute " + std::string(name) + " has a character " +
                                             std::string(service_.traits().title) +
                                             " does not take");
            bytes += message_.size();
            add_entry(body, i, message_);
        }
        end_batch(body);
        if (bytes > service_.traits().most_bytes)
            return refused(
                exchange,
                std::string(events.size() == 1 ? "the message has " : "the messages have ") +
                    std::to_string(bytes) + " bytes, " + std::string(service_.traits().title) +
                    " takes at most " + std::to_string(service_.traits().most_bytes));
        return std::nullopt;
    }

    // Refused for good: another attempt would fail in the same way.
    static Outcome refused(const Exchange& exchange, std::string why) {
        return {exchange.batch, Fate::refused, std::move(why), 0, true};
    }

    // The body must be in the buffer.
    void sign(Exchange& exchange, std::string_view action = {}) {
        service_.sign(exchange, credentials_->keys(), clock().unix_now(), action);
    }

    // Judges the whole batch by an answer other than 200, or by a missing answer.
    Outcome judge_failure(const Exchange& exchange) {
        if (exchange.status == 0)
            return scoped({exchange.batch, exchange.reached ? Fate::failed : Fate::unavailable,
                           explain(exchange)},
                          exchange.scope);
        const AwsFailure failure = service_.failure_in(exchange.body);
        const AwsVerdict verdict = verdict_of_request(exchange.status, failure.code);
        std::string error = subject(exchange) + ": " +
                            AwsService::describe(exchange, failure, credentials_->keys());
        if (verdict.bad_credentials)
            credentials_rejected();
        return scoped({exchange.batch, verdict.fate, std::move(error),
                       retry_after_of(exchange.retry_after, clock().unix_now()), verdict.permanent},
                      verdict.scope);
    }

    static Outcome scoped(Outcome outcome, Scope scope) {
        outcome.scope = scope;
        return outcome;
    }

    Outcome judge_entries(const Exchange& exchange) {
        std::optional<BatchAnswer> answer =
            parse_answer(exchange.body, exchange.batch->events.size());
        if (!answer)
            return {exchange.batch, Fate::failed,
                    subject(exchange) + ": HTTP 200, but the answer is malformed"};
        Outcome outcome{.batch = exchange.batch};
        for (EntryAnswer& entry : *answer) {
            if (receipts_)
                outcome.message_ids.push_back(std::move(entry.message_id));
            outcome.of_events.push_back(judge_entry(exchange, entry));
            if (outcome.of_events.back().fate != Fate::confirmed && outcome.error.empty()) {
                outcome.fate = outcome.of_events.back().fate;
                outcome.error = outcome.of_events.back().error;
            }
        }
        if (outcome.fate == Fate::confirmed)
            outcome.of_events.clear();
        return outcome;
    }

    std::string subject(const Exchange& exchange) const {
        return service_.subject(name_of(exchange));
    }

    virtual void begin_batch(std::string& body, const std::string& address) = 0;
    virtual void add_entry(std::string& body, std::size_t index, const AwsMessage& message) = 0;
    virtual void end_batch(std::string&) {}
    virtual std::optional<BatchAnswer> parse_answer(std::string_view body, std::size_t count) = 0;

    // Returns the outcome if the name is invalid.
    std::optional<Outcome> check_name(const Exchange& exchange, const std::string& name) const {
        if (name.size() <= service_.traits().longest_name)
            return std::nullopt;
        Outcome outcome =
            refused(exchange, subject(exchange) + ": the name has " + std::to_string(name.size()) +
                                  " characters, at most " +
                                  std::to_string(service_.traits().longest_name) + " are allowed");
        if (names_.is_constant()) {  // the name is the same for all events, so no event is at fault
            outcome.fate = Fate::unavailable;
            outcome.permanent = false;
        }
        return outcome;
    }

  private:
    EventOutcome judge_entry(const Exchange& exchange, const EntryAnswer& entry) {
        switch (entry.state) {
            case EntryAnswer::State::taken:
                return {};
            case EntryAnswer::State::missing:
                return {Fate::failed,
                        subject(exchange) + ": the answer does not mention the event"};
            case EntryAnswer::State::failed:
                break;
        }
        const AwsVerdict verdict = verdict_of_entry(entry.failure);
        if (verdict.bad_credentials)
            credentials_rejected();
        return {verdict.fate, subject(exchange) + ": " + explain(entry.failure), verdict.permanent,
                verdict.scope};
    }

    const TargetNames names_;
    AwsService service_;
    const MessageStyle style_;
    const std::size_t batch_size_;
    const bool receipts_;
    AwsCredentials* credentials_;  // owned by RequestSink
    AwsMessage message_;           // scratch space
};

// ---------------------------------------------------------------------------------------------
// SQS
// ---------------------------------------------------------------------------------------------

// Requests name a queue by its URL. If the account is known, so is the URL. Otherwise the service
// is asked for it first, within the same exchange.
class SqsSink final : public AwsSink {
  public:
    SqsSink(const AwsSinkOptions& options, const Clock& clock) : AwsSink(options, clock) {}

  private:
    enum Step { send, look_up };

    static constexpr std::size_t most_known_urls = 10'000;

    std::optional<Outcome> encode(Exchange& exchange) override {
        const std::string name = name_of(exchange);
        if (std::optional<Outcome> outcome = check_name(exchange, name))
            return outcome;
        const std::string queue_url = url_of(name);
        // A batch that cannot be sent is refused whether the queue exists or not.
        if (std::optional<Outcome> outcome = make_batch(exchange, queue_url))
            return outcome;
        if (queue_url.empty())
            make_look_up(exchange, name);
        else
            sign(exchange, "SendMessageBatch");
        return std::nullopt;
    }

    void make_look_up(Exchange& exchange, const std::string& name) {
        exchange.step = look_up;
        exchange.content.buffer = sqs_queue_url_request(name);
        sign(exchange, "GetQueueUrl");
    }

    bool next_request(Exchange& exchange) override {
        if (exchange.step != look_up || exchange.status != 200)
            return false;
        const std::string queue_url = parse_sqs_queue_url(exchange.body);
        if (queue_url.empty())
            return false;
        if (known_urls_.size() >= most_known_urls)
            known_urls_.clear();
        known_urls_[name_of(exchange)] = queue_url;
        exchange.step = send;
        make_batch(exchange, queue_url);  // it can be sent: make_batch() was called before
        sign(exchange, "SendMessageBatch");
        return true;
    }

    Outcome judge(const Exchange& exchange) override {
        if (exchange.step == look_up)
            return judge_look_up(exchange);
        if (exchange.status == 200)
            return judge_entries(exchange);
        Outcome outcome = judge_failure(exchange);
        if (outcome.fate == Fate::unavailable)
            known_urls_.erase(name_of(exchange));
        return outcome;
    }

    // Nothing has been sent to the queue yet.
    Outcome judge_look_up(const Exchange& exchange) {
        if (exchange.status == 200)
            return scoped({exchange.batch, Fate::unavailable,
                           subject(exchange) + ": the answer has no URL for it"},
                          Scope::lane);
        Outcome outcome = judge_failure(exchange);
        if (outcome.fate == Fate::throttled)
            return outcome;
        if (outcome.fate != Fate::unavailable)
            outcome.scope = Scope::lane;
        outcome.fate = Fate::unavailable;
        outcome.permanent = false;
        return outcome;
    }

    // Returns an empty URL if it is not known yet.
    std::string url_of(const std::string& name) const {
        const std::string address = address_of(name);
        if (!address.empty())
            return address;
        const auto known = known_urls_.find(name);
        return known != known_urls_.end() ? known->second : "";
    }

    void begin_batch(std::string& body, const std::string& queue_url) override {
        begin_sqs_batch(body, queue_url);
    }
    void add_entry(std::string& body, std::size_t index, const AwsMessage& message) override {
        add_sqs_entry(body, index, message);
    }
    void end_batch(std::string& body) override { end_sqs_batch(body); }
    std::optional<BatchAnswer> parse_answer(std::string_view body, std::size_t count) override {
        return parse_sqs_answer(body, count);
    }

    std::unordered_map<std::string, std::string> known_urls_;  // by name
};

// ---------------------------------------------------------------------------------------------
// SNS
// ---------------------------------------------------------------------------------------------

class SnsSink final : public AwsSink {
  public:
    SnsSink(const AwsSinkOptions& options, const Clock& clock) : AwsSink(options, clock) {}

  private:
    std::optional<Outcome> encode(Exchange& exchange) override {
        const std::string name = name_of(exchange);
        if (std::optional<Outcome> outcome = check_name(exchange, name))
            return outcome;
        if (std::optional<Outcome> outcome = make_batch(exchange, address_of(name)))
            return outcome;
        sign(exchange);
        return std::nullopt;
    }

    Outcome judge(const Exchange& exchange) override {
        return exchange.status == 200 ? judge_entries(exchange) : judge_failure(exchange);
    }

    void begin_batch(std::string& body, const std::string& topic_arn) override {
        begin_sns_batch(body, topic_arn);
    }
    void add_entry(std::string& body, std::size_t index, const AwsMessage& message) override {
        add_sns_entry(body, index, message);
    }
    std::optional<BatchAnswer> parse_answer(std::string_view body, std::size_t count) override {
        return parse_sns_answer(body, count);
    }
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        if (!outbox::initialize_curl())
            return nullptr;
        const outbox::AwsSinkOptions options = outbox::aws_sink_options(context.destination);
        if (options.kind == outbox::AwsKind::sns)
            return new outbox::SnsSink(options, context.clock);
        return new outbox::SqsSink(options, context.clock);
    });
}
