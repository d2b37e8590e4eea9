// Base64 (RFC 4648, section 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Appends the encoded bytes, with padding.
void append_base64(std::string& out, std::string_view bytes);
// Reads both alphabets (sections 4 and 5), with or without padding. Returns std::nullopt if the
// text is not base64.
std::optional<std::string> base64_decoded(std::string_view text);

}  // namespace outbox
