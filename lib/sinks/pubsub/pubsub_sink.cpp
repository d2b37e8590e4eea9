// The pubsub sink: one publish request per batch. A batch is for one topic, and has events of one
// ordering key or events without a key.
//
// A topic that does not exist can be created on the way: the exchange of the batch first carries
// the request that creates the topic, and then the publish request again.
#include <algorithm>

#include "cloud/google/google_credentials.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/pubsub/answer.hpp"
#include "sinks/pubsub/options.hpp"
#include "sinks/pubsub/publish_request.hpp"
#include "sinks/pubsub/resource.hpp"
#include "sinks/request_sink.hpp"

namespace outbox {

namespace {

constexpr std::size_t max_messages = 1'000;  // limit of the service
// A request may be ten times as large, but large ones are expensive to repeat.
constexpr std::size_t usual_request = 1024 * 1024;

class PubsubSink final : public RequestSink {
  public:
    PubsubSink(PubsubOptions options, const Clock& clock)
        : RequestSink(clock, options.transport),
          options_(std::move(options)),
          encoder_(options_.format, options_.source) {
        std::unique_ptr<GoogleCredentials> credentials;
        if (!options_.emulated)
            credentials = google_credentials(options_.google, clock);
        credentials_ = credentials.get();
        use(options_.service_url, std::move(credentials));
    }

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = std::min(options_.batch_size, max_messages),
                .max_batch_bytes = usual_request,
                .max_batches = connections(),
                .more_batches = more_connections(),
                .keys = KeyPolicy::alone,
                .lanes = !options_.topic.is_constant()};
    }

    std::size_t size_of(const Event& event) const noexcept override {
        return PublishEncoder::size_of(event);
    }

    void lane_of(const Event& event, std::string& lane) const override {
        options_.topic.append_to(lane, event, options_.source);
    }

  private:
    // Steps of an exchange.
    enum Step { publish, create_topic, publish_again };

    std::string topic_of(const Exchange& exchange) const {
        std::string topic;
        lane_of(*exchange.batch->events.front(), topic);
        return topic;
    }

    std::optional<Outcome> encode(Exchange& exchange) override {
        const std::string topic = topic_of(exchange);
        if (std::optional<std::string> why = invalid_topic_id(topic)) {
            // If the name is the same for all events, no event is at fault.
            const bool own = !options_.topic.is_constant();
            return Outcome{exchange.batch, own ? Fate::refused : Fate::unavailable, std::move(*why),
                           0, own};
        }
        RequestContent& content = exchange.content;
        if (std::optional<std::string> broken =
                encoder_.encode(exchange.batch->events, content.buffer))
            return Outcome{exchange.batch, Fate::refused, std::move(*broken), 0, true};
        content.headers = "Content-Type: application/json\r\n";
        if (credentials_ != nullptr)
            content.headers += "Authorization: " + credentials_->authorization() + "\r\n";
        exchange.keep_body = kept_answer(exchange.batch->events.size());
        make_publish(exchange, topic);
        return std::nullopt;
    }

    void make_publish(Exchange& exchange, const std::string& topic) const {
        exchange.method = "POST";
        exchange.target = topic_path(options_.project, topic) + ":publish";
        exchange.content.body = exchange.content.buffer;
    }

    bool next_request(Exchange& exchange) override {
        if (exchange.step == publish && options_.create_topics && exchange.status == 404) {
            if (ServiceError::of(exchange).status != "NOT_FOUND")
                return false;
            exchange.step = create_topic;
            exchange.method = "PUT";
            exchange.target = topic_path(options_.project, topic_of(exchange));
            exchange.content.body = "{}";
            return true;
        }
        if (exchange.step == create_topic && topic_is_there(exchange)) {
            exchange.step = publish_again;
            make_publish(exchange, topic_of(exchange));
            return true;
        }
        return false;
    }

    // Another sender may have created it first.
    static bool topic_is_there(const Exchange& exchange) {
        return exchange.status == 200 ||
               (exchange.status == 409 && ServiceError::of(exchange).status == "ALREADY_EXISTS");
    }

    Outcome judge(const Exchange& exchange) override {
        if (exchange.status == 200 && exchange.step != create_topic)
            return judge_success(exchange);
        const ServiceError error = ServiceError::of(exchange);
        if (error.status == "UNAUTHENTICATED")
            credentials_rejected();
        const Micros retry_after = retry_after_of(exchange.retry_after, clock().unix_now());
        const std::string topic = topic_of(exchange);
        if (exchange.step == create_topic)  // nothing has been published
            return scoped(
                {exchange.batch, Fate::unavailable,
                 "topic \"" + topic + "\" could not be created: " + error.explain(exchange),
                 retry_after},
                exchange.status == 0 ? exchange.scope : Scope::lane);
        const Verdict verdict =
            verdict_on(exchange, error, "projects/" + options_.project + "/topics/" + topic);
        const std::string which = error.status.empty() ? "" : "topic \"" + topic + "\": ";
        return scoped({exchange.batch, verdict.fate, which + error.explain(exchange), retry_after,
                       verdict.permanent},
                      verdict.scope);
    }

    static Outcome scoped(Outcome outcome, Scope scope) {
        outcome.scope = scope;
        return outcome;
    }

    Outcome judge_success(const Exchange& exchange) const {
        const std::size_t sent = exchange.batch->events.size();
        std::optional<std::vector<std::string>> ids = message_ids_of(exchange.body);
        if (!ids)
            return {exchange.batch, Fate::failed, "the answer has no message ids"};
        if (ids->size() != sent)
            return {exchange.batch, Fate::failed,
                    "the answer has " + std::to_string(ids->size()) + " message ids for " +
                        std::to_string(sent) + " messages"};
        Outcome outcome{.batch = exchange.batch};
        if (options_.receipts)
            outcome.message_ids = std::move(*ids);
        return outcome;
    }

    const PubsubOptions options_;
    PublishEncoder encoder_;
    GoogleCredentials* credentials_ = nullptr;  // owned by the base class
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::PubsubSink(outbox::pubsub_options(context.destination), context.clock);
    });
}
