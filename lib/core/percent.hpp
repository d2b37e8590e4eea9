// Percent-encoding (RFC 3986, section 2.1).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// One byte: "%2F".
inline void append_percent(std::string& out, char c) {
    static constexpr char hex[] = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += hex[byte >> 4];
    out += hex[byte & 0xf];
}

// All but letters, digits and "-._~", as signatures and forms of AWS want it, too.
void append_percent_encoded(std::string& out, std::string_view text);

// The byte that "%2F" stands for; std::nullopt if `text` does not begin with an encoded byte.
std::optional<char> percent_byte(std::string_view text) noexcept;

// std::nullopt if the encoding is broken, or hides a zero byte.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace outbox
