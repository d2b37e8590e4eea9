// The http sink: CloudEvents by POST to one URL. A 2xx answer confirms; verdict_of() judges all
// others. Redirects are not followed (CloudEvents webhook specification, section 2.1).
// webhook_signature.hpp signs requests if the destination has a secret or a key for it.
#include <algorithm>

#include "core/base64.hpp"
#include "core/header_lines.hpp"
#include "core/text.hpp"
#include "sinks/cloudevents.hpp"
#include "sinks/connection_check.hpp"
#include "sinks/http/options.hpp"
#include "sinks/http/webhook_signature.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/request_sink.hpp"

namespace outbox {

namespace {

constexpr std::string_view authorization = "authorization";

std::string authorization_of(const HttpOptions& options,
                             const std::vector<HeaderLine>& fixed_headers) {
    for (const HeaderLine& header : fixed_headers)
        if (equal_ignoring_case(header.name, authorization))
            return std::string(header.value);
    if (!options.token.empty())
        return "Bearer " + options.token;
    if (options.user.empty() && options.password.empty())
        return "";
    std::string value = "Basic ";
    append_base64(value, options.user + ":" + options.password);
    return value;
}

// Takes the header out of lines "name: value\r\n".
void remove_header(std::string& lines, std::string_view name) {
    for (std::size_t begin = 0, end; begin < lines.size(); begin = end) {
        end = lines.find("\r\n", begin) + 2;
        const std::size_t colon = begin + name.size();
        if (colon < end && lines[colon] == ':' &&
            equal_ignoring_case(std::string_view(lines).substr(begin, name.size()), name)) {
            lines.erase(begin, end - begin);
            end = begin;
        }
    }
}

bool is_signature_header(std::string_view name) {
    return std::any_of(signature_headers.begin(), signature_headers.end(),
                       [&](std::string_view one) { return equal_ignoring_case(one, name); });
}

constexpr int gone_status = 410;

struct Verdict {
    Fate fate;
    bool permanent = false;
    Scope scope = Scope::destination;
};

// All events have the same URL and credentials, so an answer about these says nothing about the
// event. Server errors and lost answers may have either cause (RFC 9110, section 15).
Verdict verdict_of(const Exchange& exchange) {
    const int status = exchange.status;
    if (status == 0)
        return {exchange.reached ? Fate::failed : Fate::unavailable, false, exchange.scope};
    if (status >= 200 && status < 300)
        return {Fate::confirmed};
    switch (status) {
        case 413:  // too large
        case 415:  // of a type that it does not accept
        case 431:  // its headers are too large
            return {Fate::refused, true};
        case 429:
        case 503:
            return {Fate::throttled};
        case 404:
        case 405:
        case gone_status:
            return {Fate::unavailable, false, Scope::lane};
        case 401:
        case 402:
        case 403:
        case 407:
        case 421:
        case 426:
            return {Fate::unavailable};
        case 408:
        case 425:
            return {Fate::failed};
        default:
            if (status >= 500)
                return {Fate::failed};
            return {status >= 400 ? Fate::refused : Fate::unavailable};
    }
}

class HttpSink final : public RequestSink {
  public:
    HttpSink(const HttpOptions& options, const Clock& clock)
        : RequestSink(clock, options.transport),
          format_(options.format),
          batch_size_(options.batch_size),
          pauses_if_gone_(options.pauses_if_gone),
          source_prefix_(source_prefix(options.source)),
          signer_(WebhookSigner::create(options.signing_secrets, options.signing_keys)) {
        std::vector<HeaderLine> fixed;
        if (auto parsed = parse_header_lines(options.headers))
            fixed = std::move(parsed.value());
        if (is_signed())
            fixed_names_.assign(signature_headers.begin(), signature_headers.end());
        for (const HeaderLine& header : fixed) {
            if (equal_ignoring_case(header.name, authorization) ||
                (is_signed() && is_signature_header(header.name)))
                continue;
            fixed_names_.emplace_back(header.name);
            fixed_headers_.append(header.name).append(": ").append(header.value).append("\r\n");
        }
        use(options.url, nullptr, authorization_of(options, fixed));
    }

    Capabilities capabilities() const noexcept override {
        Capabilities capabilities{.max_batches = connections(), .more_batches = more_connections()};
        if (format_ == EventFormat::batched)
            capabilities.max_batch_events = batch_size_;
        return capabilities;
    }

  private:
    bool is_signed() const noexcept { return signer_ && signer_.value(); }

    std::optional<Outcome> encode(Exchange& exchange) override {
        if (!signer_)
            return Outcome{exchange.batch, Fate::unavailable, signer_.error().message};
        const std::vector<Event*>& events = exchange.batch->events;
        switch (format_) {
            case EventFormat::structured:
                encode_structured(*events.front(), source_prefix_, exchange.content);
                break;
            case EventFormat::batched:
                encode_batched(events, source_prefix_, exchange.content);
                break;
            default:
                encode_binary(*events.front(), source_prefix_, exchange.content);
                break;
        }
        for (const std::string& name : fixed_names_)
            remove_header(exchange.content.headers, name);
        exchange.content.headers += fixed_headers_;
        if (is_signed())
            sign(exchange);
        return std::nullopt;
    }

    void sign(Exchange& exchange) {
        id_.clear();
        append_webhook_id(id_, exchange.batch->events);
        signer_.value().append_headers(exchange.content.headers, id_, clock().unix_now(),
                                       exchange.content.body);
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
    const std::string source_prefix_;
    std::string fixed_headers_;             // of each request, as lines
    std::vector<std::string> fixed_names_;  // headers that an event cannot set
    Result<WebhookSigner> signer_;
    std::string id_;  // scratch space
};

// A check of the connection, and of the keys that sign.
class HttpCheck final : public Check {
  public:
    HttpCheck(const HttpOptions& options, const Clock& clock)
        : connection_(transport_config(options.transport, clock, options.url, 1)),
          signer_(WebhookSigner::create(options.signing_secrets, options.signing_keys)) {}

    int descriptor() const noexcept override { return connection_.descriptor(); }
    Micros deadline() const noexcept override { return connection_.deadline(); }
    bool step(Micros now, std::vector<Finding>& findings) override {
        if (!connection_.step(now, findings))
            return false;
        if (!all_ok(findings))
            return true;
        if (!signer_)
            findings.push_back({"signature", false, signer_.error().message});
        else if (signer_.value())
            findings.push_back({"signature", true, "requests have " + signer_.value().describe()});
        return true;
    }

  private:
    ConnectionCheck connection_;
    const Result<WebhookSigner> signer_;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::HttpCheck(outbox::http_options(context.destination), context.clock);
    });
}

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::HttpSink(outbox::http_options(context.destination), context.clock);
    });
}
