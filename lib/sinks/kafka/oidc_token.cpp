#include "sinks/kafka/oidc_token.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/base64.hpp"
#include "core/percent.hpp"
#include "core/text.hpp"
#include "net/http_client.hpp"
#include "net/json.hpp"

namespace outbox {

namespace {

constexpr std::size_t longest_answer = 64 * 1024;
constexpr std::size_t longest_token = 32 * 1024;
// Keeps an issuer from making the time overflow.
constexpr std::int64_t longest_lifetime = 366 * 24 * 3600;  // in seconds

// RFC 6749, section 2.3.1.
std::string basic(const KafkaOptions& options) {
    std::string pair;
    append_percent_encoded(pair, options.login.client_id);
    pair += ':';
    append_percent_encoded(pair, options.login.client_secret);
    std::string value = "Basic ";
    append_base64(value, pair);
    return value;
}

std::optional<std::int64_t> lifetime_in(const Json::Value& answer) {
    const Json::Value* member = json_member(answer, "expires_in");
    if (member == nullptr)
        return std::nullopt;
    if (member->isString())  // some issuers write it so
        return parse_integer(member->asString());
    return member->isInt64() ? std::optional<std::int64_t>(member->asInt64()) : std::nullopt;
}

bool is_token(std::string_view text) {
    return !text.empty() && text.size() <= max_token &&
           std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

class OidcToken final : public TokenSource {
  public:
    OidcToken(const KafkaOptions& options, const Clock& clock)
        : TokenSource(clock),
          issuer_(host_header(Url::parse(options.login.token_endpoint).value())),
          principal_(options.login.client_id),
          has_secret_(!options.login.client_secret.empty()),
          body_("grant_type=client_credentials") {
        if (!options.login.scope.empty()) {
            body_ += "&scope=";
            append_percent_encoded(body_, options.login.scope);
        }
        TransportConfig config =
            transport_config(options.https, clock, options.login.token_endpoint, 1);
        config.authorization = basic(options);
        client_.use(std::move(config), nullptr);
        exchange_.content.headers =
            "Content-Type: application/x-www-form-urlencoded\r\nAccept: application/json\r\n";
        exchange_.content.body = body_;
        exchange_.keep_body = max_token_answer;
        done_.reserve(1);
    }

    int descriptor() const noexcept override { return client_.descriptor(); }
    Micros deadline() const noexcept override { return client_.deadline(); }
    std::string origin() const override { return "of " + issuer_; }

  private:
    void fetch(Micros now) override {
        if (has_secret_)
            client_.send(exchange_);
        else
            TokenSource::fail(
                "client_secret is required by sasl_mechanism OAUTHBEARER (CREATE USER MAPPING)",
                now);
    }

    void advance(Micros now) override {
        client_.step(now, done_);
        for (; !done_.empty(); done_.pop_back())
            take_answer(now);
    }

    void take_answer(Micros now) {
        const auto fail = [&](const std::string& why) {
            TokenSource::fail("no token of " + issuer_ + ": " + why, now);
        };
        // The body of a failed answer may be shown; that of another one may have a token.
        if (exchange_.status != 200)
            return fail(exchange_.status / 100 == 2 ? "HTTP " + std::to_string(exchange_.status)
                                                    : explain(exchange_));
        if (exchange_.body.size() >= longest_answer)
            return fail("its answer is too large");
        const std::optional<Json::Value> answer = parse_json(exchange_.body);
        if (!answer || !answer->isObject())
            return fail("its answer is not a JSON object");
        std::string token = json_text(*answer, "access_token");
        if (!is_token(token))
            return fail("its answer has no usable access_token");
        const std::string type = json_text(*answer, "token_type");
        if (!type.empty() && !equal_ignoring_case(type, "bearer"))
            return fail("its answer has a token_type other than Bearer");
        const std::optional<std::int64_t> lifetime = lifetime_in(*answer);
        if (!lifetime || *lifetime <= 0)
            return fail("its answer has no usable expires_in");
        take({std::move(token), principal_}, seconds(std::min(*lifetime, max_lifetime)), now);
    }

    const std::string issuer_;
    const std::string principal_;
    const bool has_secret_;
    std::string body_;
    Exchange exchange_;
    HttpClient client_;  // destroyed before the exchange
    std::vector<Exchange*> done_;
};

}  // namespace

std::unique_ptr<TokenSource> oidc_token(const KafkaOptions& options, const Clock& clock) {
    return std::make_unique<OidcToken>(options, clock);
}

}  // namespace outbox
