#include "sinks/http/webhook_secret.hpp"

#include "core/base64.hpp"

namespace outbox {

// Libraries of receivers do not agree on other spellings: some leave out the characters that they
// do not know, and so have another secret.
static std::optional<std::string> bytes_behind(std::string_view mark, std::string_view text) {
    if (!text.starts_with(mark))
        return std::nullopt;
    text.remove_prefix(mark.size());
    std::optional<std::string> bytes = base64_decoded(text);
    std::string spelling;
    if (bytes)
        append_base64(spelling, *bytes);
    return spelling == text ? bytes : std::nullopt;
}

std::optional<std::string> webhook_secret_bytes(std::string_view text) {
    std::optional<std::string> bytes = bytes_behind(webhook_secret_mark, text);
    if (bytes && (bytes->size() < shortest_webhook_secret || bytes->size() > max_webhook_secret))
        return std::nullopt;
    return bytes;
}

std::optional<std::string> webhook_key_bytes(std::string_view text) {
    std::optional<std::string> bytes = bytes_behind(webhook_key_mark, text);
    if (bytes && bytes->size() != webhook_seed_size && bytes->size() != 2 * webhook_seed_size)
        return std::nullopt;
    return bytes;
}

}  // namespace outbox
