#include "sinks/request_sink.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

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

}  // namespace outbox
