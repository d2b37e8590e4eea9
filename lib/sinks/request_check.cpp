#include "sinks/request_check.hpp"

namespace outbox {

void RequestCheck::use(TransportConfig config, std::unique_ptr<Credentials> credentials) {
    connection_ = std::make_unique<ConnectionCheck>(config);
    client_.watch(connection_->descriptor());
    client_.use(std::move(config), std::move(credentials));
}

Micros RequestCheck::deadline() const noexcept {
    switch (stage_) {
        case Stage::reaching:
            return connection_->deadline();
        case Stage::credentials:
            return client_.credentials_deadline();
        case Stage::asking:
            return exchange_ == nullptr ? 0 : client_.deadline();
        case Stage::done:
            break;
    }
    return never;
}

bool RequestCheck::step(Micros now, std::vector<Finding>& findings) {
    if (stage_ == Stage::reaching) {
        reach(now, findings);
    } else {
        const Credentials::State state = client_.step_credentials(now);
        if (stage_ == Stage::credentials)
            get_credentials(state, findings);
    }
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
    } else if (!client_.has_credentials()) {
        stage_ = Stage::asking;
    } else {
        stage_ = Stage::credentials;
        get_credentials(client_.need_credentials(now), findings);
    }
}

void RequestCheck::get_credentials(Credentials::State state, std::vector<Finding>& findings) {
    switch (state) {
        case Credentials::State::pending:
            break;
        case Credentials::State::ready:
            findings.push_back({"credentials", true, "available"});
            stage_ = Stage::asking;
            break;
        case Credentials::State::failed:
            findings.push_back({"credentials", false, client_.credentials_error()});
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
    client_.send(*exchange_);
}

void RequestCheck::take_answer(Micros now, std::vector<Finding>& findings) {
    client_.step(now, answered_);
    if (answered_.empty())
        return;
    answered_.clear();
    judge(*exchange_, findings);
    exchange_.reset();
}

}  // namespace outbox
