// Percent-encoding (RFC 3986, section 2.1).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Appends one byte as "%2F".
inline void append_percent(std::string& out, char c) {
    static constexpr char hex[] = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += hex[byte >> 4];
    out += hex[byte & 0xf];
}

// Encodes all bytes except letters, digits and "-._~", as signatures and forms of AWS require.
void append_percent_encoded(std::string& out, std::string_view text);

// Encodes bytes that are not ASCII in a URL, or the part of one behind the host: no request may have
// them, and libcurl encodes some. The host stays as it is.
std::string ascii_url(std::string_view url);

// Decodes the byte at the start of `text` ("%2F"). Returns std::nullopt if it is not encoded.
std::optional<char> percent_byte(std::string_view text) noexcept;

// Returns std::nullopt if the encoding is malformed or contains a zero byte.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace outbox
