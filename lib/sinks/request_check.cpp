#include "sinks/request_check.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

namespace outbox {

RequestCheck::RequestCheck() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

RequestCheck::~RequestCheck() {
    transport_.reset();  // it holds the exchange
    credentials_.reset();
    connection_.reset();
    if (epoll_ >= 0)
        close(epoll_);
}

static void watch(int epoll, int descriptor) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (descriptor >= 0)
        epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event);
}

void RequestCheck::use(TransportConfig config, std::unique_ptr<Credentials> credentials) {
    connection_ = std::make_unique<ConnectionCheck>(config);
    transport_ = create_transport(std::move(config));
    credentials_ = std::move(credentials);
    watch(epoll_, connection_->descriptor());
    watch(epoll_, transport_->descriptor());
    if (credentials_ != nullptr)
        watch(epoll_, credentials_->descriptor());
}

Micros RequestCheck::deadline() const noexcept {
    switch (stage_) {
        case Stage::reaching:
            return connection_->deadline();
        case Stage::credentials:
            return credentials_->deadline();
        case Stage::asking:
            return exchange_ == nullptr ? 0 : transport_->deadline();
        case Stage::done:
            break;
    }
    return never;
}

bool RequestCheck::step(Micros now, std::vector<Finding>& findings) {
    if (stage_ == Stage::reaching)
        reach(now, findings);
    else if (stage_ == Stage::credentials)
        get_credentials(credentials_->step(now), findings);
    if (stage_ == Stage::asking && exchange_ == nullptr)
        ask_next(findings);
    if (stage_ == Stage::asking)
        take_answer(now, findings);
    return stage_ == Stage::done;
}

void RequestCheck::reach(Micros now, std::vector<Finding>& findings) {
    std::vector<Finding> found;
    if (!connection_->step(now, found))
        return;
    findings.insert(findings.end(), found.begin(), found.end());
    connection_.reset();
    if (!all_ok(found)) {
        stage_ = Stage::done;
    } else if (credentials_ == nullptr) {
        stage_ = Stage::asking;
    } else {
        stage_ = Stage::credentials;
        get_credentials(credentials_->need(now), findings);
    }
}

void RequestCheck::get_credentials(Credentials::State state, std::vector<Finding>& findings) {
    switch (state) {
        case Credentials::State::pending:
            break;
        case Credentials::State::ready:
            findings.push_back({"credentials", true, "there are some"});
            stage_ = Stage::asking;
            break;
        case Credentials::State::failed:
            findings.push_back({"credentials", false, credentials_->error()});
            stage_ = Stage::done;
            break;
    }
}

void RequestCheck::ask_next(std::vector<Finding>& findings) {
    auto exchange = std::make_unique<Exchange>();
    if (!ask(*exchange, findings)) {
        stage_ = Stage::done;
        return;
    }
    exchange_ = std::move(exchange);
    transport_->send(*exchange_);
}

void RequestCheck::take_answer(Micros now, std::vector<Finding>& findings) {
    transport_->step(now, answered_);
    if (answered_.empty())
        return;
    answered_.clear();
    if (exchange_->status / 100 != 2)
        conceal_secrets(*exchange_);
    judge(*exchange_, findings);
    exchange_.reset();
}

}  // namespace outbox
