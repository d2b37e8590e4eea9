#include "net/nats/nats_login.hpp"

#include <utility>

namespace outbox {

static Error invalid(std::string message) {
    return {ErrorKind::invalid_value, std::move(message)};
}

Result<NatsLogin> nats_login(const NatsLoginTexts& texts) {
    NatsLogin login{.user = texts.user, .password = texts.password, .token = texts.token};
    const int ways = !texts.user.empty() + !texts.token.empty() + !texts.nkey_seed.empty() +
                     !texts.credentials.empty();
    if (ways > 1)
        return invalid("user, token, nkey_seed and credentials exclude each other");
    if (!texts.password.empty() && texts.user.empty())
        return invalid("password needs user");
    if (!texts.nkey_seed.empty()) {
        login.key = NatsKey::parse(texts.nkey_seed);
        if (!login.key)
            return invalid("nkey_seed is not the seed of a user");
    }
    if (!texts.credentials.empty()) {
        std::optional<NatsCredentials> parsed = NatsCredentials::parse(texts.credentials);
        if (!parsed)
            return invalid("credentials have no JWT or no seed of a user");
        login.jwt = std::move(parsed->jwt);
        login.key = std::move(parsed->key);
    }
    return login;
}

}  // namespace outbox
