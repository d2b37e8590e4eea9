#include "net/http_client.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "core/conceal.hpp"

namespace outbox {

HttpClient::HttpClient() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

HttpClient::~HttpClient() {
    if (epoll_ >= 0)
        close(epoll_);
}

void HttpClient::watch(int descriptor) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    if (descriptor >= 0)
        epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
}

void HttpClient::use(TransportConfig config, std::unique_ptr<Credentials> credentials,
                     CreateTransport create) {
    secret_ = secret_in(config.authorization);
    config.repeats = &repeats_;
    transport_ = create(std::move(config));
    credentials_ = std::move(credentials);
    watch(transport_->descriptor());
    if (credentials_ != nullptr)
        watch(credentials_->descriptor());
}

Micros HttpClient::deadline() const noexcept {
    return std::min(transport_->deadline(), credentials_deadline());
}

Micros HttpClient::credentials_deadline() const noexcept {
    return credentials_ == nullptr ? never : credentials_->deadline();
}

Credentials::State HttpClient::need_credentials(Micros now) {
    return credentials_ == nullptr ? Credentials::State::ready : credentials_->need(now);
}

Credentials::State HttpClient::step_credentials(Micros now) {
    return credentials_ == nullptr ? Credentials::State::ready : credentials_->step(now);
}

void HttpClient::credentials_rejected() noexcept {
    if (credentials_ != nullptr)
        credentials_->rejected();
}

void HttpClient::step(Micros now, std::vector<Exchange*>& done) {
    const std::size_t known = done.size();
    transport_->step(now, done);
    for (std::size_t i = known; i < done.size(); i++) {
        if (done[i]->status / 100 == 2)
            continue;
        conceal(done[i]->body, secret_);
        conceal_secrets(*done[i], done[i]->body);
    }
}

}  // namespace outbox
