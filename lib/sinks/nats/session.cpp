#include "sinks/nats/session.hpp"

#include <openssl/rand.h>

#include <array>
#include <charconv>
#include <new>

namespace outbox {

Result<NatsConfig> nats_config(const NatsOptions& options) {
    NatsConfig config{
        .hosts = options.hosts,
        .tls = options.tls,
        .tls_first = options.tls_first,
        .client_name = "pg_outbox",
        .login = {.user = options.user, .password = options.password, .token = options.token},
        .transport = options.transport};
    const auto invalid = [](std::string message) {
        return Error{ErrorKind::invalid_value, std::move(message)};
    };
    if (const auto why = wrong_client_certificate(options.transport.certificate,
                                                  options.transport.private_key, options.tls))
        return invalid(*why);
    const int ways = !options.user.empty() + !options.token.empty() + !options.nkey_seed.empty() +
                     !options.credentials.empty();
    if (ways > 1)
        return invalid(
            "user, token, nkey_seed and credentials of the user mapping exclude each other");
    if (!options.password.empty() && options.user.empty())
        return invalid("password of the user mapping needs user");
    if (!options.nkey_seed.empty()) {
        config.login.key = NatsKey::parse(options.nkey_seed);
        if (!config.login.key)
            return invalid("nkey_seed of the user mapping is not the seed of a user");
    }
    if (!options.credentials.empty()) {
        std::optional<NatsCredentials> parsed = NatsCredentials::parse(options.credentials);
        if (!parsed)
            return invalid("credentials of the user mapping have no JWT or no seed of a user");
        config.login.jwt = std::move(parsed->jwt);
        config.login.key = std::move(parsed->key);
    }
    return config;
}

NatsInbox::NatsInbox(const std::string& prefix) {
    std::array<unsigned char, 16> secret{};
    if (RAND_bytes(secret.data(), static_cast<int>(secret.size())) != 1)
        throw std::bad_alloc();
    static constexpr char hex[] = "0123456789abcdef";
    prefix_ = prefix + '.';
    for (const unsigned char byte : secret) {
        prefix_ += hex[byte >> 4];
        prefix_ += hex[byte & 15];
    }
    prefix_ += '.';
}

std::string NatsInbox::subscription() const {
    return "SUB " + prefix_ + "* " + std::to_string(id) + "\r\n";
}

void NatsInbox::append_reply(std::string& out, std::uint64_t request) const {
    char digits[20];
    const auto [end, error] = std::to_chars(digits, digits + sizeof digits, request, 36);
    static_cast<void>(error);  // 13 digits hold every number
    out.append(prefix_).append(digits, end);
}

std::optional<std::uint64_t> NatsInbox::request_of(const NatsInput& message) const noexcept {
    if (message.subscription != id || !message.subject.starts_with(prefix_))
        return std::nullopt;
    const std::string_view digits = message.subject.substr(prefix_.size());
    std::uint64_t request = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), request, 36);
    if (error != std::errc{} || end != digits.data() + digits.size())
        return std::nullopt;
    return request;
}

}  // namespace outbox
