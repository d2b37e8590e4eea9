// The http sink: CloudEvents by POST to one URL. A 2xx answer confirms; verdict_of() judges all
// others. Redirects are not followed (CloudEvents webhook specification, section 2.1).
// webhook_signature.hpp signs requests if the destination has a secret or a key for it.
#include "sinks/http/http_sink.hpp"

#include "core/base64.hpp"
#include "sinks/http/event_requests.hpp"
#include "sinks/http/options.hpp"
#include "sinks/http/verdict.hpp"
#include "sinks/http/webhook_signature.hpp"
#include "sinks/request_sink.hpp"

namespace outbox {

namespace {

std::string authorization_of(const HttpOptions& options, const std::string& of_headers) {
    if (!of_headers.empty())
        return of_headers;
    if (!options.token.empty())
        return "Bearer " + options.token;
    if (options.user.empty() && options.password.empty())
        return "";
    std::string value = "Basic ";
    append_base64(value, options.user + ":" + options.password);
    return value;
}

bool can_sign(const Result<WebhookSigner>& signer) noexcept {
    return signer && signer.value();
}

class HttpSink final : public RequestSink {
  public:
    HttpSink(const HttpOptions& options, const Clock& clock)
        : RequestSink(clock, options.transport),
          format_(options.format),
          batch_size_(options.batch_size),
          pauses_if_gone_(options.pauses_if_gone),
          signer_(WebhookSigner::create(options.signing_secrets, options.signing_keys)),
          requests_(options.format, options.source, options.headers, can_sign(signer_)) {
        use(options.url, nullptr, authorization_of(options, requests_.authorization()),
            create_transport_for_many);
    }

    Capabilities capabilities() const noexcept override {
        Capabilities capabilities{.max_batches = connections(), .more_batches = more_connections()};
        if (format_ == EventFormat::batched)
            capabilities.max_batch_events = batch_size_;
        return capabilities;
    }

  private:
    std::optional<Outcome> encode(Exchange& exchange) override {
        if (!signer_)
            return Outcome{exchange.batch, Fate::unavailable, signer_.error().message};
        requests_.encode(exchange.batch->events, exchange.content);
        if (can_sign(signer_))
            requests_.sign(exchange.batch->events, signer_.value(), clock().unix_now(),
                           exchange.content);
        return std::nullopt;
    }

    Outcome judge(const Exchange& exchange) override {
        const Verdict verdict = verdict_of(exchange);
        if (verdict.fate == Fate::confirmed)
            return {.batch = exchange.batch};
        Outcome outcome{exchange.batch, verdict.fate, explain(exchange),
                        retry_after_of(exchange.retry_after, clock().unix_now()),
                        verdict.permanent};
        outcome.scope = verdict.scope;
        outcome.gone = exchange.status == gone_status && pauses_if_gone_;
        return outcome;
    }

    const EventFormat format_;
    const std::size_t batch_size_;
    const bool pauses_if_gone_;
    Result<WebhookSigner> signer_;
    EventRequests requests_;
};

}  // namespace

std::unique_ptr<Sink> create_http_sink(const SinkContext& context) {
    return std::make_unique<HttpSink>(http_options(context.destination), context.clock);
}

}  // namespace outbox
