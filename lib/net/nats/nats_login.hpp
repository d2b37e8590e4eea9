// Ways to log in to a NATS server.
#pragma once

#include <optional>
#include <string>

#include "core/result.hpp"
#include "net/nats/nkey.hpp"

namespace outbox {

// The options of a login as texts. Most of them are empty.
struct NatsLoginTexts {
    std::string user{}, password{};
    std::string token{};
    std::string nkey_seed{};
    std::string credentials{};  // the text of a file that `nsc` writes
};

struct NatsLogin {
    std::string user{}, password{};
    std::string token{};
    std::string jwt{};
    std::optional<NatsKey> key{};
};

// Returns an error if they cannot be used. May throw std::bad_alloc.
Result<NatsLogin> nats_login(const NatsLoginTexts& texts);

}  // namespace outbox
