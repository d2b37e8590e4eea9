// The sqs and sns sinks. A message is made once (aws_message.hpp) and written in either protocol.
#include <unordered_map>

#include "cloud/aws/sns_protocol.hpp"
#include "cloud/aws/sqs_protocol.hpp"
#include "sinks/aws/aws_message.hpp"
#include "sinks/aws/aws_sink.hpp"
#include "sinks/aws/sns_batch.hpp"
#include "sinks/aws/sqs_batch.hpp"
#include "sinks/cloudevents.hpp"

namespace outbox {

namespace {

class MessageSink : public AwsSink {
  public:
    Capabilities capabilities() const noexcept final {
        Capabilities capabilities = usual_capabilities();
        if (style_.fifo)  // an entry of a group may be taken although the one before it was not
            capabilities.keys = KeyPolicy::one_each;
        return capabilities;
    }

    std::size_t size_of(const Event& event) const noexcept final {
        return message_size_bound(event, style_);
    }

  protected:
    MessageSink(const AwsSinkOptions& options, const Clock& clock)
        : AwsSink(options, clock),
          style_{options.format, names().fifo(), source_prefix(options.source)} {}

    // Makes the request that sends the batch to this queue or topic, or returns the outcome if it
    // cannot be sent.
    std::optional<Outcome> make_batch(Exchange& exchange, const std::string& address) {
        const std::vector<Event*>& events = exchange.batch->events;
        const AwsTraits& traits = service().traits();
        std::string& body = exchange.content.buffer;
        body.clear();
        begin_batch(body, address);
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < events.size(); i++) {
            message_.assign(*events[i], style_);
            if (const std::string_view name = message_.illegal_attribute(); !name.empty())
                return refused(exchange, "attribute " + std::string(name) + " has a character " +
                                             std::string(traits.title) + " does not take");
            bytes += message_.size();
            add_entry(body, i, message_);
        }
        end_batch(body);
        if (bytes > traits.max_bytes)
            return refused(
                exchange,
                std::string(events.size() == 1 ? "the message has " : "the messages have ") +
                    std::to_string(bytes) + " bytes, " + std::string(traits.title) +
                    " takes at most " + std::to_string(traits.max_bytes));
        return std::nullopt;
    }

    virtual void begin_batch(std::string& body, const std::string& address) = 0;
    virtual void add_entry(std::string& body, std::size_t index, const AwsMessage& message) = 0;
    virtual void end_batch(std::string&) {}

  private:
    const MessageStyle style_;
    AwsMessage message_;  // scratch space
};

// ---------------------------------------------------------------------------------------------
// SQS
// ---------------------------------------------------------------------------------------------

// Requests name a queue by its URL. If the account is known, so is the URL. Otherwise the service
// is asked for it first, within the same exchange.
class SqsSink final : public MessageSink {
  public:
    SqsSink(const AwsSinkOptions& options, const Clock& clock) : MessageSink(options, clock) {}

  private:
    enum Step { send, look_up };

    static constexpr std::size_t max_known_urls = 10'000;

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
        if (known_urls_.size() >= max_known_urls)
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
            return judge_entries(exchange,
                                 parse_sqs_answer(exchange.body, exchange.batch->events.size()));
        Outcome outcome = judge_failure(exchange);
        if (outcome.fate == Fate::unavailable)
            known_urls_.erase(name_of(exchange));
        return outcome;
    }

    // Nothing has been sent to the queue yet.
    Outcome judge_look_up(const Exchange& exchange) {
        if (exchange.status != 200)
            return judge_look_up_failure(exchange);
        return scoped({exchange.batch, Fate::unavailable,
                       subject(exchange) + ": the answer has no URL for it"},
                      Scope::lane);
    }

    // Returns an empty URL if it is not known yet.
    std::string url_of(const std::string& name) const {
        std::string address = service().address_of(name);
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

    std::unordered_map<std::string, std::string> known_urls_;  // by name
};

// ---------------------------------------------------------------------------------------------
// SNS
// ---------------------------------------------------------------------------------------------

class SnsSink final : public MessageSink {
  public:
    SnsSink(const AwsSinkOptions& options, const Clock& clock) : MessageSink(options, clock) {}

  private:
    std::optional<Outcome> encode(Exchange& exchange) override {
        const std::string name = name_of(exchange);
        if (std::optional<Outcome> outcome = check_name(exchange, name))
            return outcome;
        if (std::optional<Outcome> outcome = make_batch(exchange, service().address_of(name)))
            return outcome;
        sign(exchange);
        return std::nullopt;
    }

    Outcome judge(const Exchange& exchange) override {
        if (exchange.status != 200)
            return judge_failure(exchange);
        return judge_entries(exchange,
                             parse_sns_answer(exchange.body, exchange.batch->events.size()));
    }

    void begin_batch(std::string& body, const std::string& topic_arn) override {
        begin_sns_batch(body, topic_arn);
    }
    void add_entry(std::string& body, std::size_t index, const AwsMessage& message) override {
        add_sns_entry(body, index, message);
    }
};

}  // namespace

std::unique_ptr<Sink> make_sqs_sink(const AwsSinkOptions& options, const Clock& clock) {
    return std::make_unique<SqsSink>(options, clock);
}

std::unique_ptr<Sink> make_sns_sink(const AwsSinkOptions& options, const Clock& clock) {
    return std::make_unique<SnsSink>(options, clock);
}

}  // namespace outbox
