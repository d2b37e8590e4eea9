#include "core/percent.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

void append_percent_encoded(std::string& out, std::string_view text) {
    for (const char c : text) {
        const char lower = ascii_lower(c);
        const bool plain = (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                           c == '.' || c == '_' || c == '~';
        if (plain)
            out += c;
        else
            append_percent(out, c);
    }
}

// Behind "scheme://host".
static std::size_t start_of_path(std::string_view url) noexcept {
    const std::size_t slash = url.find('/');
    const bool has_host = slash != url.npos && slash > 0 && url[slash - 1] == ':' &&
                          url.substr(slash).starts_with("//");
    return has_host ? std::min(url.find_first_of("/?", slash + 2), url.size()) : 0;
}

std::string ascii_url(std::string_view url) {
    std::string ascii(url.substr(0, start_of_path(url)));
    for (const char c : url.substr(ascii.size()))
        if (static_cast<unsigned char>(c) < 0x80)
            ascii += c;
        else
            append_percent(ascii, c);
    return ascii;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c = ascii_lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::optional<char> percent_byte(std::string_view text) noexcept {
    if (text.size() < 3 || text[0] != '%')
        return std::nullopt;
    const int high = hex_digit(text[1]), low = hex_digit(text[2]);
    if (high < 0 || low < 0)
        return std::nullopt;
    return static_cast<char>(high * 16 + low);
}

std::optional<std::string> percent_decoded(std::string_view text) {
    std::string decoded;
    for (std::size_t i = 0; i < text.size(); i++) {
        if (text[i] != '%') {
            decoded += text[i];
            continue;
        }
        const std::optional<char> byte = percent_byte(text.substr(i));
        if (!byte || *byte == '\0')
            return std::nullopt;
        decoded += *byte;
        i += 2;
    }
    return decoded;
}

}  // namespace outbox
