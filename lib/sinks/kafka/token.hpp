// The token that a client presents with sasl_mechanism OAUTHBEARER. It is fetched, or made, when it is
// needed first, and renewed before it expires.
//
// The library could fetch tokens, too, where it was built with libcurl. But it does so in a thread of
// its own, where nothing checks the address.
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
    // After a failure it is `failed` for a moment, in which nothing is fetched.
    State need(Micros now) final;
    State step(Micros now) final;
    void rejected() noexcept override { expires_ = renew_ = 0; }
    const std::string& error() const noexcept final { return error_; }

    // While the state is `ready`.
    const Token& token() const noexcept { return token_; }
    bool is_fetching() const noexcept { return fetching_; }
    // A few words for the check, such as "of id.example.com".
    virtual std::string origin() const = 0;

  protected:
    explicit TokenSource(const Clock& clock) : clock_(clock) {}

    // Ends with take() or fail(), at once or in a later advance().
    virtual void fetch(Micros now) = 0;
    // Also while nothing is fetched: connections must be served.
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

// Logs clients in with tokens, if the mechanism is one with tokens. Otherwise it is always ready.
class TokenLogin {
  public:
    TokenLogin(const KafkaOptions& options, const Clock& clock);

    int descriptor() const noexcept { return source_ ? source_->descriptor() : -1; }
    Micros deadline() const noexcept { return source_ ? source_->deadline() : never; }
    const TokenSource* source() const noexcept { return source_.get(); }

    // No client is made before this is `ready`; each new client is then given the token.
    Credentials::State need(Micros now);
    void give(KafkaClient& client);
    const std::string& error() const noexcept { return source_->error(); }

    void step(Micros now);
    // Gives a client that asked for it another token, or says why there is none.
    void renew(KafkaClient& client, Micros now);
    // A broker refused the token.
    void rejected() noexcept;

  private:
    const std::unique_ptr<TokenSource> source_;
};

}  // namespace outbox
