// Gets tokens from an issuer, by the client credentials grant of OAuth 2.0 (RFC 6749, section 4.4).
#pragma once

#include <memory>

#include "sinks/kafka/token.hpp"

namespace outbox {

// May throw std::bad_alloc.
std::unique_ptr<TokenSource> oidc_token(const KafkaOptions& options, const Clock& clock);

}  // namespace outbox
