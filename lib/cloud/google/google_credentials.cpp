#include "cloud/google/google_credentials.hpp"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "cloud/google/service_account.hpp"
#include "core/small_file.hpp"
#include "net/json.hpp"
#include "net/transport.hpp"

namespace outbox {

namespace {

constexpr const char* pubsub_scope = "https://www.googleapis.com/auth/pubsub";
constexpr std::int64_t token_lifetime = 3600;  // in seconds; the longest that Google accepts
constexpr Micros renew_ahead = seconds(225);   // like Google's own clients
constexpr Micros renew_again = seconds(10);    // after a renewal that failed
constexpr std::size_t max_token = 16 * 1024;

// The lifetime of a token. A token is renewed when it is needed, not while nothing is sent.
class Lease {
  public:
    void begin(Micros now, Micros lifetime) {
        expires_ = now + lifetime;
        renew_ = now + std::max(lifetime - renew_ahead, lifetime / 2);
    }
    void end() noexcept { expires_ = renew_ = 0; }
    void renew_later(Micros now) { renew_ = now + renew_again; }

    bool valid(Micros now) const { return now < expires_; }
    bool wants_renewal(Micros now) const { return now >= renew_; }

  private:
    Micros expires_ = 0;
    Micros renew_ = 0;
};

// A fixed token, or the reason why there is none.
class FixedCredentials final : public GoogleCredentials {
  public:
    static std::unique_ptr<GoogleCredentials> token(const std::string& token) {
        auto made = std::make_unique<FixedCredentials>();
        made->authorization_ = "Bearer " + token;
        return made;
    }
    static std::unique_ptr<GoogleCredentials> none(std::string why) {
        auto made = std::make_unique<FixedCredentials>();
        made->error_ = std::move(why);
        return made;
    }

    State need(Micros) override { return authorization_.empty() ? State::failed : State::ready; }
    State step(Micros now) override { return need(now); }
    void rejected() noexcept override {}
};

// Tokens signed with the key of a service account. The key is read when it is needed, and again
// after the service rejected a token, because the file may have been replaced.
class KeyCredentials final : public GoogleCredentials {
  public:
    // `name` is the name of the key in errors. The key is `text` or, if that is empty, the file
    // `path`.
    KeyCredentials(const Clock& clock, std::string name, std::string text, std::string path)
        : clock_(clock), name_(std::move(name)), text_(std::move(text)), path_(std::move(path)) {}
    ~KeyCredentials() override { OPENSSL_cleanse(text_.data(), text_.size()); }

    State need(Micros now) override {
        if (lease_.wants_renewal(now) && !sign(now)) {
            if (!lease_.valid(now))
                return State::failed;
            lease_.renew_later(now);
        }
        return State::ready;
    }
    State step(Micros now) override { return lease_.valid(now) ? State::ready : State::failed; }
    void rejected() noexcept override {
        lease_.end();
        account_.reset();
    }

  private:
    bool sign(Micros now) {
        if (!account_ && !read_account())
            return false;
        const std::optional<std::string> token =
            account_->sign_token(pubsub_scope, clock_.unix_now() / seconds(1), token_lifetime);
        if (!token) {
            error_ = name_ + " cannot sign a token";
            return false;
        }
        authorization_ = "Bearer " + *token;
        lease_.begin(now, seconds(token_lifetime));
        return true;
    }

    bool read_account() {
        std::string text = text_;
        if (text.empty()) {
            Result<std::string> read = read_small_file(path_);
            if (!read) {
                error_ = name_ + " cannot be read: " + read.error().detail;
                return false;
            }
            text = std::move(read.value());
        }
        Result<ServiceAccount> account = ServiceAccount::parse(text);
        OPENSSL_cleanse(text.data(), text.size());
        if (!account) {
            error_ = name_ + " is not the key of a service account: " + account.error().message;
            return false;
        }
        account_ = std::move(account.value());
        return true;
    }

    const Clock& clock_;
    std::string name_;
    std::string text_;
    std::string path_;
    std::optional<ServiceAccount> account_;
    Lease lease_;
};

// Tokens of the machine's service account, from its metadata server.
class MetadataCredentials final : public GoogleCredentials {
  public:
    MetadataCredentials(const Clock& clock, const std::string& host) {
        const std::string url =
            "http://" + host + "/computeMetadata/v1/instance/service-accounts/default/token";
        Result<Url> parsed = Url::parse(url);
        if (!parsed) {
            error_ = "GCE_METADATA_HOST is not a host";
            return;
        }
        transport_ = create_transport({.clock = clock,
                                       .url_text = url,
                                       .url = std::move(parsed.value()),
                                       .allowed_hosts = std::nullopt,
                                       .connect_timeout = seconds(3),
                                       .request_timeout = seconds(3),
                                       .ca_file = "",
                                       .authorization = "",
                                       .max_connections = 1});
        exchange_.method = "GET";
        exchange_.content.headers = "Metadata-Flavor: Google\r\n";
        exchange_.keep_body = max_token;
        done_.reserve(1);
    }

    int descriptor() const noexcept override {
        return transport_ == nullptr ? -1 : transport_->descriptor();
    }
    Micros deadline() const noexcept override {
        return transport_ == nullptr ? never : transport_->deadline();
    }

    State need(Micros now) override {
        if (!asking_ && transport_ != nullptr && lease_.wants_renewal(now)) {
            asking_ = true;
            transport_->send(exchange_);
        }
        return state(now);
    }

    State step(Micros now) override {
        if (transport_ != nullptr)
            transport_->step(now, done_);
        for (; !done_.empty(); done_.pop_back()) {
            asking_ = false;
            if (!take_answer(now) && lease_.valid(now))
                lease_.renew_later(now);
        }
        return state(now);
    }

    void rejected() noexcept override { lease_.end(); }

  private:
    State state(Micros now) const {
        if (lease_.valid(now))
            return State::ready;
        return asking_ ? State::pending : State::failed;
    }

    bool take_answer(Micros now) {
        const auto fail = [&](const std::string& why) {
            error_ =
                "no credentials in the user mapping, and none from the metadata server: " + why;
            return false;
        };
        if (exchange_.status != 200)  // the body of a success may have a token
            return fail(exchange_.status / 100 == 2 ? "HTTP " + std::to_string(exchange_.status)
                                                    : explain(exchange_));
        const std::optional<Json::Value> answer = parse_json(exchange_.body);
        const std::string token = answer ? json_text(*answer, "access_token") : "";
        const Json::Value* lifetime = answer ? json_member(*answer, "expires_in") : nullptr;
        const bool usable =
            !token.empty() && lifetime != nullptr && lifetime->isInt() && lifetime->asInt() > 0 &&
            std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; });
        if (!usable)
            return fail("its answer is malformed");
        authorization_ = "Bearer " + token;
        lease_.begin(now, seconds(lifetime->asInt()));
        return true;
    }

    std::unique_ptr<Transport> transport_;
    Exchange exchange_;
    std::vector<Exchange*> done_;
    bool asking_ = false;
    Lease lease_;
};

const char* environment(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && value[0] != '\0' ? value : nullptr;
}

}  // namespace

std::unique_ptr<GoogleCredentials> google_credentials(const GoogleOptions& options,
                                                      const Clock& clock) {
    if (!options.token.empty())
        return FixedCredentials::token(options.token);
    if (!options.key.empty())
        return std::make_unique<KeyCredentials>(clock, "option \"key\"", options.key, "");
    if (!options.key_file.empty())
        return std::make_unique<KeyCredentials>(clock, "the file of option \"key_file\"", "",
                                                options.key_file);
    if (!options.needs_credentials_because.empty())
        return FixedCredentials::none(
            "credentials are required, in the user mapping or in relay.toml: " +
            options.needs_credentials_because);
    if (const char* path = environment("GOOGLE_APPLICATION_CREDENTIALS"))
        return std::make_unique<KeyCredentials>(
            clock, "the file named by GOOGLE_APPLICATION_CREDENTIALS", "", path);
    const char* host = environment("GCE_METADATA_HOST");
    return std::make_unique<MetadataCredentials>(
        clock, host != nullptr ? host : "metadata.google.internal");
}

}  // namespace outbox
