// The http sink: CloudEvents by POST to one URL. A 2xx answer confirms; what others mean is in
// verdict_of(). Redirects are not followed (CloudEvents webhook specification, section 2.1).
#include <algorithm>

#include "core/text.hpp"
#include "sinks/http/curl_loop.hpp"
#include "sinks/http/transport.hpp"

namespace outbox {

namespace {

constexpr std::size_t default_connections = 16;
constexpr std::size_t default_batch = 100;
// A destination cannot ask to be left alone for longer.
constexpr Micros longest_retry_after = seconds(24 * 60 * 60);

std::string authorization_of(const Destination& destination) {
    if (!destination.token.empty())
        return "Bearer " + destination.token;
    if (destination.user.empty() && destination.password.empty())
        return "";
    std::string value = "Basic ";
    append_base64(value, destination.user + ":" + destination.password);
    return value;
}

// Retry-After is a number of seconds or a date (RFC 9110, section 10.2.3).
Micros retry_after_of(const std::string& text, Micros unix_now) {
    if (text.empty())
        return 0;
    Micros wait = 0;
    if (const auto number = parse_integer(text))
        wait = *number > longest_retry_after / seconds(1) ? longest_retry_after : seconds(*number);
    else if (const time_t date = curl_getdate(text.c_str(), nullptr); date >= 0)
        wait = seconds(date) - unix_now;
    return std::clamp<Micros>(wait, 0, longest_retry_after);
}

// One line that can be shown: what came from outside has no control characters any more.
std::string printable(std::string_view text) {
    std::string line;
    for (char c : text)
        line += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
    return std::string(trim(line));
}

struct Verdict {
    Fate fate;
    bool permanent = false;
};

// The URL and the credentials are the same for all events, so an answer about them says nothing
// about this one. Server errors and lost answers may be due to either (RFC 9110, section 15).
Verdict verdict_of(const Exchange& exchange) {
    const int status = exchange.status;
    if (status == 0)
        return {exchange.reached ? Fate::failed : Fate::unavailable};
    if (status >= 200 && status < 300)
        return {Fate::confirmed};
    switch (status) {
        case 413:  // too large
        case 415:  // of a kind it does not take
        case 431:  // its headers are too large
            return {Fate::refused, true};
        case 401:
        case 402:
        case 403:
        case 404:
        case 405:
        case 407:
        case 410:
        case 421:
        case 426:
        case 429:
        case 503:
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

std::string explain(const Exchange& exchange) {
    if (exchange.status == 0)
        return printable(exchange.error);
    std::string text = "HTTP " + std::to_string(exchange.status);
    if (exchange.status >= 300 && exchange.status < 400)
        text += " (redirects are not followed)";
    const std::string body = printable(exchange.body);
    return body.empty() ? text : text + ": " + body;
}

class HttpSink final : public Sink {
  public:
    explicit HttpSink(const SinkContext& context)
        : destination_(context.destination),
          clock_(context.clock),
          source_prefix_(source_prefix(context.destination.source)),
          connections_(destination_.max_connections > 0 ? destination_.max_connections
                                                        : default_connections) {
        TransportConfig config{destination_, clock_, authorization_of(destination_), connections_};
        transport_ = destination_.url.scheme == "https"
                         ? create_curl_transport(std::move(config))
                         : create_direct_transport(std::move(config));
        exchanges_.resize(connections_);
        out_of_memory_.reserve(connections_);
        for (Exchange& exchange : exchanges_)
            spare_.push_back(&exchange);
    }

    Capabilities capabilities() const noexcept override {
        Capabilities capabilities{.max_batches = connections_};
        if (destination_.format == HttpFormat::batched)
            capabilities.max_batch_events =
                destination_.batch_size > 0 ? destination_.batch_size : default_batch;
        return capabilities;
    }

    int descriptor() const noexcept override { return transport_->descriptor(); }
    Micros deadline() const noexcept override {
        return out_of_memory_.empty() && done_.empty() ? transport_->deadline() : 0;
    }

    void submit(Batch& batch) noexcept override {
        try {
            if (spare_.empty())  // lost to earlier shortages of memory
                throw std::bad_alloc();
            Exchange& exchange = *spare_.back();
            exchange.batch = &batch;
            exchange.reached = false;
            encode(batch, exchange.content);
            spare_.pop_back();
            transport_->send(exchange);
        } catch (...) {
            out_of_memory_.push_back(&batch);
        }
    }

    void step(Micros now, std::vector<Outcome>& outcomes) noexcept override {
        try {
            transport_->step(now, done_);
            for (; !done_.empty(); done_.pop_back()) {
                outcomes.push_back(outcome_of(*done_.back()));
                spare_.push_back(done_.back());
            }
            for (; !out_of_memory_.empty(); out_of_memory_.pop_back())
                outcomes.push_back({out_of_memory_.back(), Fate::unavailable, "out of memory"});
        } catch (...) {
            // What could not be reported is still there for the next step.
        }
    }

  private:
    void encode(const Batch& batch, RequestContent& content) const {
        switch (destination_.format) {
            case HttpFormat::binary:
                encode_binary(*batch.events.front(), source_prefix_, content);
                break;
            case HttpFormat::structured:
                encode_structured(*batch.events.front(), source_prefix_, content);
                break;
            case HttpFormat::batched:
                encode_batched(batch.events, source_prefix_, content);
                break;
        }
    }

    Outcome outcome_of(const Exchange& exchange) const {
        const Verdict verdict = verdict_of(exchange);
        if (verdict.fate == Fate::confirmed)
            return {.batch = exchange.batch};
        return {exchange.batch, verdict.fate, explain(exchange),
                retry_after_of(exchange.retry_after, clock_.unix_now()), verdict.permanent};
    }

    const Destination& destination_;
    const Clock& clock_;
    const std::string source_prefix_;
    const std::size_t connections_;
    std::unique_ptr<Transport> transport_;
    std::vector<Exchange> exchanges_;
    std::vector<Exchange*> spare_;
    std::vector<Exchange*> done_;
    std::vector<Batch*> out_of_memory_;
};

}  // namespace

}  // namespace outbox

extern "C" __attribute__((visibility("default"))) outbox::Sink* outbox_create_sink(
    const outbox::SinkContext& context) noexcept {
    static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (initialized != CURLE_OK)
        return nullptr;
    try {
        return new outbox::HttpSink(context);
    } catch (...) {
        return nullptr;
    }
}
