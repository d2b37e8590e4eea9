// Keys of NATS: Ed25519 keys in base32 with a checksum, and files of credentials, which hold a JWT and
// the seed of its key.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

struct NatsKey {
    std::string seed;        // 32 bytes
    std::string public_key;  // as text, such as "UABC..."

    // Reads the text of the seed of a user ("SU..."). Returns std::nullopt if it is not one. May throw
    // std::bad_alloc.
    static std::optional<NatsKey> parse(std::string_view text);

    // Returns the signature in base64 (URL alphabet, no padding), or an empty text if OpenSSL fails.
    std::string sign(std::string_view nonce) const;
};

struct NatsCredentials {
    std::string jwt;
    NatsKey key;

    // Reads the text of a file that `nsc` writes (".creds"). Returns std::nullopt if it has no JWT or
    // no seed.
    static std::optional<NatsCredentials> parse(std::string_view text);
};

}  // namespace outbox
