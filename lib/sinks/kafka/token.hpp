// The token that a client presents with sasl_mechanism OAUTHBEARER. It is fetched or made on first
// use, and renewed before it expires.
//
// A library that was built with libcurl could fetch tokens, too. But it does so in a thread of its
// own, where nothing checks the address.
#pragma once

#include <memory>
#include <string>

#include "core/clock.hpp"
#include "net/credentials.hpp"
#include "sinks/kafka/client.hpp"
#include "sinks/kafka/options.hpp"

namespace outbox {

class TokenSource : public Credentials {
  public:
    // After a failure it stays `failed` for a while, and does not fetch.
    State need(Micros now) final;
    State step(Micros now) final;
    void rejected() noexcept override { expires_ = renew_ = 0; }
    const std::string& error() const noexcept final { return error_; }

    // Only valid in the state `ready`.
    const Token& token() const noexcept { return token_; }
    bool is_fetching() const noexcept { return fetching_; }
    // Returns a few words for the check, such as "of id.example.com".
    virtual std::string origin() const = 0;

  protected:
    explicit TokenSource(const Clock& clock) : clock_(clock) {}

    // Must end with take() or fail(), at once or in a later advance().
    virtual void fetch(Micros now) = 0;
    // Also called while nothing is fetched, because connections need it.
    virtual void advance(Micros now) = 0;
    void take(Token token, Micros lifetime, Micros now);
    void fail(std::string why, Micros now);

    const Clock& clock_;

  private:
    State state(Micros now) const noexcept;

    Token token_;
    std::string error_;
    bool fetching_ = false;
    Micros expires_ = 0;
    Micros renew_ = 0;
    Micros fetch_again_ = 0;  // after a failure
};

// Logs clients in with tokens. It is always ready if the mechanism has none.
class TokenLogin {
  public:
    TokenLogin(const KafkaOptions& options, const Clock& clock);

    int descriptor() const noexcept { return source_ ? source_->descriptor() : -1; }
    Micros deadline() const noexcept { return source_ ? source_->deadline() : never; }
    const TokenSource* source() const noexcept { return source_.get(); }

    // A client may only be made when this is `ready`. Each new client must be given the token.
    Credentials::State need(Micros now);
    void give(KafkaClient& client);
    const std::string& error() const noexcept { return source_->error(); }

    void step(Micros now);
    // If the client has asked for a token, gives it one, or says why there is none.
    void renew(KafkaClient& client, Micros now);
    // A broker refused the token.
    void rejected() noexcept;

  private:
    const std::unique_ptr<TokenSource> source_;
};

}  // namespace outbox
