#include "sinks/kafka/token.hpp"

#include <algorithm>

#include "sinks/kafka/msk_token.hpp"
#include "sinks/kafka/oidc_token.hpp"

namespace outbox {

// As a part of the token's lifetime. The library asks for another token after four fifths of it.
static constexpr int renewed_after = 3, of_parts = 4;
static constexpr Micros pause_after_failure = seconds(1);

// -------------------------------------------------------------------------------------------------
// The source
// -------------------------------------------------------------------------------------------------

Credentials::State TokenSource::state(Micros now) const noexcept {
    if (now < expires_)
        return State::ready;
    return fetching_ ? State::pending : State::failed;
}

Credentials::State TokenSource::need(Micros now) {
    if (!fetching_ && now >= renew_ && now >= fetch_again_) {
        fetching_ = true;
        fetch(now);
    }
    return state(now);
}

Credentials::State TokenSource::step(Micros now) {
    advance(now);
    return state(now);
}

void TokenSource::take(Token token, Micros lifetime, Micros now) {
    fetching_ = false;
    error_.clear();
    token_ = std::move(token);
    token_.expires = clock_.unix_now() + lifetime;
    expires_ = now + lifetime;
    renew_ = now + lifetime / of_parts * renewed_after;
}

void TokenSource::fail(std::string why, Micros now) {
    fetching_ = false;
    error_ = std::move(why);
    fetch_again_ = now + pause_after_failure;
}

// -------------------------------------------------------------------------------------------------
// The login
// -------------------------------------------------------------------------------------------------

static std::unique_ptr<TokenSource> source_for(const KafkaOptions& options, const Clock& clock) {
    if (options.login.mechanism == "OAUTHBEARER")
        return oidc_token(options, clock);
    if (options.login.mechanism == "AWS_MSK_IAM")
        return msk_token(options, clock);
    return nullptr;
}

TokenLogin::TokenLogin(const KafkaOptions& options, const Clock& clock)
    : source_(source_for(options, clock)) {}

Credentials::State TokenLogin::need(Micros now) {
    return source_ == nullptr ? Credentials::State::ready : source_->need(now);
}

void TokenLogin::give(KafkaClient& client) {
    if (source_ != nullptr)
        client.set_token(source_->token());
}

void TokenLogin::step(Micros now) {
    if (source_ != nullptr)
        source_->step(now);
}

// If a token could not be renewed and is still valid, it is set again. The library asks again after
// four fifths of the rest of its lifetime.
void TokenLogin::renew(KafkaClient& client, Micros now) {
    if (source_ == nullptr || !client.wants_token())
        return;
    const Credentials::State state = source_->need(now);
    if (source_->is_fetching())
        return;
    if (state == Credentials::State::ready)
        client.set_token(source_->token());
    else
        client.refuse_token(source_->error());
}

void TokenLogin::rejected() noexcept {
    if (source_ != nullptr)
        source_->rejected();
}

}  // namespace outbox
