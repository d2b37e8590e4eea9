#include "sinks/request_sink.hpp"

namespace outbox {

RequestSink::RequestSink(const Clock& clock, TransportOptions options)
    : clock_(clock),
      options_(std::move(options)),
      exchanges_(options_.max_connections + options_.more_connections) {
    for (auto* list : {&spare_, &waiting_, &done_})
        list->reserve(exchanges_.size());
    unsent_.reserve(exchanges_.size());
    for (Exchange& exchange : exchanges_)
        spare_.push_back(&exchange);
}

void RequestSink::use(std::string url, std::unique_ptr<Credentials> credentials,
                      std::string authorization, CreateTransport create) {
    TransportConfig config = transport_config(options_, clock_, std::move(url), exchanges_.size());
    config.authorization = std::move(authorization);
    client_.use(std::move(config), std::move(credentials), create);
}

Micros RequestSink::deadline() const noexcept {
    if (!unsent_.empty() || !done_.empty())
        return 0;
    return client_.deadline();
}

void RequestSink::submit(Batch& batch) {
    Exchange& exchange = *spare_.back();  // not empty: the pipeline respects capabilities()
    spare_.pop_back();
    exchange.batch = &batch;
    exchange.step = 0;
    exchange.reached = false;
    exchange.scope = Scope::connection;
    const Credentials::State state = client_.need_credentials(clock_.now());
    if (state == Credentials::State::ready) {
        start(exchange);
    } else if (state == Credentials::State::pending) {
        waiting_.push_back(&exchange);
    } else {
        unsent_.push_back({&batch, Fate::unavailable, client_.credentials_error()});
        give_back(exchange);
    }
}

void RequestSink::start(Exchange& exchange) {
    if (std::optional<Outcome> outcome = encode(exchange)) {
        unsent_.push_back(std::move(*outcome));
        give_back(exchange);
    } else {
        client_.send(exchange);
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
            outcomes.push_back({exchange.batch, Fate::unavailable, client_.credentials_error()});
            give_back(exchange);
        } else {
            start(exchange);
        }
        waiting_.pop_back();
    }
}

bool RequestSink::report(SinkReport& report) {
    client_.report(report);
    return false;
}

bool RequestSink::goes_on(Exchange& exchange) {
    if (!next_request(exchange))
        return false;
    exchange.reached = false;
    client_.send(exchange);
    return true;
}

void RequestSink::step(Micros now, std::vector<Outcome>& outcomes) {
    start_waiting(client_.step_credentials(now), outcomes);
    client_.step(now, done_);
    for (; !done_.empty(); done_.pop_back()) {
        if (goes_on(*done_.back()))
            continue;
        outcomes.push_back(judge(*done_.back()));
        give_back(*done_.back());
    }
    for (; !unsent_.empty(); unsent_.pop_back())
        outcomes.push_back(std::move(unsent_.back()));
}

}  // namespace outbox
