// Helpers for text that several parts of the library share.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outbox {

inline std::string_view trim(std::string_view text) noexcept {
    constexpr std::string_view blanks = " \t\r\n";
    std::size_t first = text.find_first_not_of(blanks);
    if (first == std::string_view::npos)
        return {};
    return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

inline char ascii_lower(char c) noexcept {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

inline bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept {
    if (a.size() != b.size())
        return false;
    for (std::size_t i = 0; i < a.size(); i++)
        if (ascii_lower(a[i]) != ascii_lower(b[i]))
            return false;
    return true;
}

// Reads the whole text as a number; std::nullopt if it contains anything else.
inline std::optional<std::int64_t> parse_integer(std::string_view text) noexcept {
    std::int64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
        return std::nullopt;
    return value;
}

inline void append_integer(std::string& out, std::int64_t value) {
    char digits[24];
    auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
    static_cast<void>(error);  // 24 characters hold every int64
    out.append(digits, end);
}

using Uuid = std::array<std::uint8_t, 16>;

// Appends 8-4-4-4-12 lower-case hex digits, as PostgreSQL prints a uuid.
void append_uuid(std::string& out, const Uuid& uuid);

// Appends RFC 3339 in UTC with microseconds: 2026-01-31T10:20:30.123456Z. The year is 1 to 9999,
// which enqueue() checks.
void append_timestamp(std::string& out, std::int64_t unix_micros);

// Appends a JSON string with its quotes. UTF-8 is copied, except that quotes, backslashes and
// control characters are escaped. A byte that is not part of a character becomes U+FFFD: a reader
// might otherwise take the closing quote as the rest of that character.
void append_json_string(std::string& out, std::string_view text);
// Appends both as a member of an object: "name":"text".
void append_json_member(std::string& out, std::string_view name, std::string_view text);

// Returns the number of bytes of the first character of `text`, which must not be empty, or 0 if it
// is not valid UTF-8 (RFC 3629).
std::size_t utf8_length(std::string_view text) noexcept;
void append_utf8(std::string& out, std::uint32_t character);

// Turns text from a peer or a producer into one line that can be logged, stored and shown. A byte
// that is not UTF-8 becomes '?'. Control characters (C0, C1, DEL), line separators, and characters
// that are invisible or change the direction of text become blanks. At most `max_size` bytes are
// kept.
constexpr std::size_t max_printable = 1000;
std::string printable(std::string_view text, std::size_t max_size = max_printable);

}  // namespace outbox
