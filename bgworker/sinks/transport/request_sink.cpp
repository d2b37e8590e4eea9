#include "sinks/transport/request_sink.hpp"

#include <curl/curl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

// A destination cannot ask to be left alone for longer.
static constexpr Micros longest_retry_after = seconds(24 * 60 * 60);
// Unless the destination says how many connections there may be.
static constexpr std::size_t growth_while_others_hang = 4;

RequestSink::RequestSink(const SinkContext& context, std::size_t connections)
    : clock_(context.clock),
      destination_(context.destination),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      connections_(destination_.max_connections > 0 ? destination_.max_connections : connections),
      exchanges_(destination_.max_connections > 0 ? connections_
                                                  : connections_ * growth_while_others_hang) {
    for (auto* list : {&spare_, &waiting_, &done_})
        list->reserve(exchanges_.size());
    unsent_.reserve(exchanges_.size());
    for (Exchange& exchange : exchanges_)
        spare_.push_back(&exchange);
}

RequestSink::~RequestSink() {
    transport_.reset();  // it holds exchanges
    credentials_.reset();
    if (epoll_ >= 0)
        close(epoll_);
}

static void watch(int epoll, int descriptor) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (descriptor >= 0)
        epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event);
}

// Of the value of an Authorization header: a token or a password. A signature is none.
static std::string_view secret_in(std::string_view authorization) {
    for (const std::string_view scheme : {"Bearer ", "Basic "})
        if (authorization.substr(0, scheme.size()) == scheme)
            return authorization.substr(scheme.size());
    return {};
}

void RequestSink::use(std::string url, std::unique_ptr<Credentials> credentials,
                      std::string authorization) {
    TransportConfig config =
        transport_config(destination_, clock_, std::move(url), exchanges_.size());
    secret_ = secret_in(authorization);
    config.authorization = std::move(authorization);
    transport_ = create_transport(std::move(config));
    credentials_ = std::move(credentials);
    watch(epoll_, transport_->descriptor());
    if (credentials_ != nullptr)
        watch(epoll_, credentials_->descriptor());
}

Micros RequestSink::deadline() const noexcept {
    if (!unsent_.empty() || !done_.empty())
        return 0;
    const Micros next = transport_->deadline();
    return credentials_ == nullptr ? next : std::min(next, credentials_->deadline());
}

void RequestSink::submit(Batch& batch) {
    Exchange& exchange = *spare_.back();  // the pipeline submits no more than capabilities() says
    spare_.pop_back();
    exchange.batch = &batch;
    exchange.step = 0;
    exchange.reached = false;
    exchange.scope = Scope::connection;
    const Credentials::State state =
        credentials_ == nullptr ? Credentials::State::ready : credentials_->need(clock_.now());
    if (state == Credentials::State::ready) {
        start(exchange);
    } else if (state == Credentials::State::pending) {
        waiting_.push_back(&exchange);
    } else {
        unsent_.push_back({&batch, Fate::unavailable, credentials_->error()});
        give_back(exchange);
    }
}

void RequestSink::start(Exchange& exchange) {
    if (std::optional<Outcome> outcome = encode(exchange)) {
        unsent_.push_back(std::move(*outcome));
        give_back(exchange);
    } else {
        transport_->send(exchange);
    }
}

void RequestSink::give_back(Exchange& exchange) noexcept {
    exchange.batch = nullptr;
    spare_.push_back(&exchange);
}

void RequestSink::start_waiting(Credentials::State state, std::vector<Outcome>& outcomes) {
    if (state == Credentials::State::pending)
        return;
    while (!waiting_.empty()) {
        Exchange& exchange = *waiting_.back();
        if (state == Credentials::State::failed) {
            outcomes.push_back({exchange.batch, Fate::unavailable, credentials_->error()});
            give_back(exchange);
        } else {
            start(exchange);
        }
        waiting_.pop_back();
    }
}

// What a server says about a request may repeat it, as Amazon's does when a signature is wrong.
void conceal_secrets(Exchange& exchange) noexcept {
    static constexpr std::string_view authorization = "Authorization: ";
    static constexpr std::string_view session = "X-Amz-Security-Token: ";
    std::string_view lines = exchange.content.headers;
    for (std::size_t end; (end = lines.find("\r\n")) != lines.npos; lines.remove_prefix(end + 2)) {
        const std::string_view line = lines.substr(0, end);
        if (line.substr(0, authorization.size()) == authorization)
            conceal(exchange.body, secret_in(line.substr(authorization.size())));
        else if (line.substr(0, session.size()) == session)
            conceal(exchange.body, line.substr(session.size()));
    }
}

bool RequestSink::goes_on(Exchange& exchange) {
    if (!next_request(exchange))
        return false;
    exchange.reached = false;
    transport_->send(exchange);
    return true;
}

void RequestSink::step(Micros now, std::vector<Outcome>& outcomes) {
    if (credentials_ != nullptr)
        start_waiting(credentials_->step(now), outcomes);
    transport_->step(now, done_);
    for (; !done_.empty(); done_.pop_back()) {
        if (done_.back()->status / 100 != 2) {
            conceal(done_.back()->body, secret_);
            conceal_secrets(*done_.back());
        }
        if (goes_on(*done_.back()))
            continue;
        outcomes.push_back(judge(*done_.back()));
        give_back(*done_.back());
    }
    for (; !unsent_.empty(); unsent_.pop_back())
        outcomes.push_back(std::move(unsent_.back()));
}

void RequestSink::credentials_rejected() noexcept {
    if (credentials_ != nullptr)
        credentials_->rejected();
}

std::string explain(const Exchange& exchange) {
    if (exchange.status == 0)
        return printable(exchange.error);
    std::string text = "HTTP " + std::to_string(exchange.status);
    if (exchange.status >= 300 && exchange.status < 400)
        text += " (redirects are not followed)";
    const std::string body = printable(std::string_view(exchange.body).substr(0, usual_kept_body));
    return body.empty() ? text : text + ": " + body;
}

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

bool initialize_curl() noexcept {
    static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
    return initialized == CURLE_OK;
}

}  // namespace outbox
