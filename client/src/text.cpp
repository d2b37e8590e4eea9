#include "text.hpp"

#include <array>
#include <charconv>
#include <cstdio>

#include "core/text.hpp"

namespace inbox {

// ------------------------------------------------------------------------------------------------
// Ids, arrays, times
// ------------------------------------------------------------------------------------------------

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool is_uuid(std::string_view text) {
    if (text.size() != 36)
        return false;
    for (std::size_t i = 0; i < text.size(); i++) {
        const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? text[i] != '-' : !is_hex(text[i]))
            return false;
    }
    return true;
}

// FNV-1a suffices: the input is not hostile, the values only need to be spread.
static std::uint64_t hash(std::uint64_t state, std::string_view text) {
    for (const unsigned char byte : text)
        state = (state ^ byte) * 0x100000001b3;
    return state;
}

std::string made_uuid(std::string_view source, std::string_view message_id) {
    const std::uint64_t first = hash(hash(0xcbf29ce484222325, source), message_id);
    const std::uint64_t second = hash(hash(first, "\n"), message_id);
    char text[37];
    std::snprintf(text, sizeof text, "%08x-%04x-8%03x-%04x-%012llx",
                  static_cast<unsigned>(first >> 32), static_cast<unsigned>(first >> 16 & 0xffff),
                  static_cast<unsigned>(first & 0xfff),
                  static_cast<unsigned>(0x8000 | (second >> 48 & 0x3fff)),
                  static_cast<unsigned long long>(second & 0xffff'ffff'ffff));
    return text;
}

std::string array_literal(std::span<const std::string> elements) {
    std::string text = "{";
    for (const std::string& element : elements) {
        text += text.size() > 1 ? ",\"" : "\"";
        for (const char c : element) {
            if (c == '"' || c == '\\')
                text += '\\';
            text += c;
        }
        text += '"';
    }
    return text + "}";
}

std::optional<std::string> time_literal(Time time) {
    if (time == Time{})
        return {};
    std::string text;
    outbox::append_timestamp(text, time.time_since_epoch().count());
    return text;
}

// ------------------------------------------------------------------------------------------------
// UTF-8
// ------------------------------------------------------------------------------------------------

std::string clean_utf8(std::string_view text, std::string_view replacement) {
    std::string clean;
    clean.reserve(text.size());
    while (!text.empty()) {
        const std::size_t length = text[0] == '\0' ? 0 : outbox::utf8_length(text);
        clean += length == 0 ? replacement : text.substr(0, length);
        text.remove_prefix(length == 0 ? 1 : length);
    }
    return clean;
}

// ------------------------------------------------------------------------------------------------
// Headers
// ------------------------------------------------------------------------------------------------

std::optional<std::string> headers_to_json(const std::map<std::string, std::string>& headers) {
    if (headers.empty())
        return {};
    std::string json = "{";
    for (const auto& [name, value] : headers) {
        if (json.size() > 1)
            json += ',';
        outbox::append_json_member(json, clean_utf8(name), clean_utf8(value));
    }
    return json + "}";
}

// Reads the text form of jsonb, and stops at anything else.
class HeadersReader {
  public:
    explicit HeadersReader(std::string_view json) : rest_(json) {}

    std::map<std::string, std::string> read() {
        std::map<std::string, std::string> headers;
        if (!skip('{'))
            return headers;
        while (peek() == '"') {
            std::string name = string();
            if (!skip(':'))
                break;
            if (peek() == '"')
                headers.insert_or_assign(std::move(name), string());
            else if (const std::string_view value = other(); value != "null")
                headers.insert_or_assign(std::move(name), value);
            if (!skip(','))
                break;
        }
        return headers;
    }

  private:
    char peek() {
        while (!rest_.empty() &&
               (rest_[0] == ' ' || rest_[0] == '\n' || rest_[0] == '\t' || rest_[0] == '\r'))
            rest_.remove_prefix(1);
        return rest_.empty() ? '\0' : rest_[0];
    }

    bool skip(char c) {
        if (peek() != c)
            return false;
        rest_.remove_prefix(1);
        return true;
    }

    char take() {
        if (rest_.empty())
            return '\0';
        const char c = rest_[0];
        rest_.remove_prefix(1);
        return c;
    }

    std::string string() {
        std::string text;
        take();
        while (!rest_.empty()) {
            const char c = take();
            if (c == '"')
                break;
            if (c == '\\')
                escape(text);
            else
                text += c;
        }
        return text;
    }

    void escape(std::string& text) {
        switch (const char c = take()) {
            case 'b':
                text += '\b';
                break;
            case 'f':
                text += '\f';
                break;
            case 'n':
                text += '\n';
                break;
            case 'r':
                text += '\r';
                break;
            case 't':
                text += '\t';
                break;
            case 'u':
                outbox::append_utf8(text, character());
                break;
            default:
                text += c;
        }
    }

    std::uint32_t character() {
        const std::uint32_t high = unit();
        if (high < 0xd800 || high >= 0xdc00 || !rest_.starts_with("\\u"))
            return high;
        rest_.remove_prefix(2);
        return 0x10000 + ((high - 0xd800) << 10) + (unit() - 0xdc00);
    }

    std::uint32_t unit() {
        std::uint32_t value = 0;
        const std::string_view digits = rest_.substr(0, 4);
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
        rest_.remove_prefix(digits.size());
        return value;
    }

    // Reads a number, a boolean, null, or a whole nested value.
    std::string_view other() {
        const std::string_view begin = rest_;
        int depth = 0;
        while (!rest_.empty()) {
            const char c = rest_[0];
            if (c == '"') {
                string();
                continue;
            }
            if (depth == 0 && (c == ',' || c == '}'))
                break;
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            rest_.remove_prefix(1);
        }
        return begin.substr(0, begin.size() - rest_.size());
    }

    std::string_view rest_;
};

std::map<std::string, std::string> headers_from_json(std::string_view json) {
    return HeadersReader(json).read();
}

}  // namespace inbox
