// The text forms of secrets and keys that sign webhooks. Nothing here needs a library: pg_outbox.so
// checks the options with it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace outbox {

inline constexpr std::string_view webhook_secret_mark = "whsec_";
inline constexpr std::string_view webhook_key_mark = "whsk_";

inline constexpr std::size_t shortest_webhook_secret = 24;
inline constexpr std::size_t max_webhook_secret = 64;
// A private key of Ed25519 is a seed. Many programs keep the public key behind it.
inline constexpr std::size_t webhook_seed_size = 32;

// These return the bytes, or std::nullopt if the text has another form or another size.
std::optional<std::string> webhook_secret_bytes(std::string_view text);
std::optional<std::string> webhook_key_bytes(std::string_view text);

}  // namespace outbox
