#include "cloud/aws/aws_credentials.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <cstdlib>

#include "cloud/aws/shared_file.hpp"
#include "core/small_file.hpp"

namespace outbox {

static constexpr std::size_t kept_body = 64 * 1024;

std::string environment_variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

AwsCredentials::AwsCredentials(AwsOptions options, Micros request_timeout, const Clock& clock,
                               Environment environment)
    : options_(std::move(options)),
      request_timeout_(request_timeout),
      clock_(clock),
      environment_(std::move(environment)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

AwsCredentials::~AwsCredentials() {
    transport_.reset();  // first, because it refers to the exchange
    if (epoll_ >= 0)
        close(epoll_);
}

Micros AwsCredentials::deadline() const noexcept {
    return transport_ != nullptr ? transport_->deadline() : never;
}

bool AwsCredentials::are_usable() const {
    return keys_ && !rejected_ && clock_.unix_now() < keys_->expires;
}

bool AwsCredentials::are_worth_renewing(Micros now) const {
    return now >= renew_at_ && keys_->expires != never &&
           clock_.unix_now() >= keys_->expires - renew_before;
}

Credentials::State AwsCredentials::state() const {
    if (are_usable())
        return State::ready;
    return transport_ != nullptr ? State::pending : State::failed;
}

// Keys that are still valid are used while new ones are fetched, and if that fails.
Credentials::State AwsCredentials::need(Micros now) {
    if (transport_ == nullptr && (!are_usable() || are_worth_renewing(now)))
        fetch(now);
    return state();
}

Credentials::State AwsCredentials::step(Micros now) {
    if (transport_ == nullptr)
        return state();
    transport_->step(now, done_);
    if (!done_.empty()) {
        done_.clear();
        exchange_.step++;
        advance();
    }
    return state();
}

void AwsCredentials::fetch(Micros now) {
    renew_at_ = now + renew_every;
    const bool has_keys = !options_.access_key_id.empty() || !options_.secret_access_key.empty() ||
                          !options_.session_token.empty();
    if (has_keys)
        fetch_from_mapping();
    else if (!options_.profile.empty())
        fetch_from_file(options_.profile, true);
    else if (!options_.needs_credentials_because.empty())
        fail(
            "neither the user mapping nor relay.toml has access_key_id and secret_access_key, "
            "and " +
            options_.needs_credentials_because);
    else
        fetch_from_platform();
}

void AwsCredentials::fetch_from_mapping() {
    if (options_.access_key_id.empty() || options_.secret_access_key.empty())
        fail("the user mapping must have both access_key_id and secret_access_key");
    else
        take({options_.access_key_id, options_.secret_access_key, options_.session_token});
}

// The first source that is configured counts, even if it does not work.
void AwsCredentials::fetch_from_platform() {
    const std::string profile = environment_("AWS_PROFILE");
    const bool found =
        fetch_from_environment() ||
        fetch_from(web_identity_source(environment_, options_.region, request_timeout_)) ||
        fetch_from_file(profile.empty() ? "default" : profile, !profile.empty()) ||
        fetch_from(container_source(environment_)) || fetch_from(instance_source(environment_));
    if (!found)
        fail("none in the user mapping, and none from the platform of the server");
}

bool AwsCredentials::fetch_from_environment() {
    AwsKeys keys{environment_("AWS_ACCESS_KEY_ID"), environment_("AWS_SECRET_ACCESS_KEY"),
                 environment_("AWS_SESSION_TOKEN")};
    if (keys.access_key_id.empty())
        return false;
    if (keys.secret_access_key.empty())
        fail("AWS_ACCESS_KEY_ID is set, but not AWS_SECRET_ACCESS_KEY");
    else
        take(std::move(keys));
    return true;
}

// Returns false if the file has no keys and is not required.
bool AwsCredentials::fetch_from_file(const std::string& name, bool required) {
    std::string path = environment_("AWS_SHARED_CREDENTIALS_FILE");
    if (path.empty())
        path = environment_("HOME") + "/.aws/credentials";
    const Result<std::string> text = read_small_file(path);
    if (!text) {
        if (required)
            fail(text.error().message);
        return required;
    }
    Profile profile = find_profile(text.value(), name);
    if (!profile.keys.access_key_id.empty() && !profile.keys.secret_access_key.empty()) {
        take(std::move(profile.keys));
        return true;
    }
    if (required)
        fail(profile.found ? "profile \"" + name +
                                 "\" has no access key and secret; other kinds of credentials "
                                 "are not supported"
                           : "profile \"" + name + "\" does not exist in \"" + path + "\"");
    return required;
}

// Returns false if the source is not configured.
bool AwsCredentials::fetch_from(std::optional<Result<KeySource>> source) {
    if (!source)
        return false;
    if (*source)
        start(std::move(source->value()));
    else
        fail(source->error().message);
    return true;
}

void AwsCredentials::start(KeySource source) {
    Result<Url> url = Url::parse(source.url);
    if (!url || (url.value().scheme != "http" && url.value().scheme != "https")) {
        fail(source.name + ": \"" + source.url + "\" is not a URL");
        return;
    }
    source_ = std::move(source);
    transport_ = create_transport({.clock = clock_,
                                   .url_text = source_->url,
                                   .url = std::move(url.value()),
                                   .allowed_hosts = std::nullopt,
                                   .connect_timeout = source_->timeout,
                                   .request_timeout = source_->timeout,
                                   .ca_file = "",
                                   .authorization = "",
                                   .max_connections = 1});
    epoll_event event{};
    event.events = EPOLLIN;
    if (transport_->descriptor() >= 0)
        epoll_ctl(epoll_, EPOLL_CTL_ADD, transport_->descriptor(), &event);
    exchange_ = {};
    exchange_.keep_body = kept_body;
    advance();
}

// Makes the next request, or ends.
void AwsCredentials::advance() {
    exchange_.content.body = {};
    Result<std::optional<AwsKeys>> next = source_->next(exchange_);
    if (!next) {
        fail(source_->name + ": " + next.error().message);
    } else if (next.value()) {
        take(std::move(*next.value()));
    } else {
        exchange_.reached = false;
        transport_->send(exchange_);
    }
}

void AwsCredentials::take(AwsKeys keys) {
    keys_ = std::move(keys);
    rejected_ = false;
    error_ = are_usable() ? "" : "no AWS credentials: the keys have expired";
    stop();
}

void AwsCredentials::fail(std::string why) {
    error_ = "no AWS credentials: " + std::move(why);
    stop();
}

void AwsCredentials::stop() {
    transport_.reset();
    source_.reset();
}

}  // namespace outbox
