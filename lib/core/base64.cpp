#include "core/base64.hpp"

namespace outbox {

void append_base64(std::string& out, std::string_view bytes) {
    static constexpr char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const std::size_t start = out.size();
    out.resize(start + (bytes.size() + 2) / 3 * 4, '=');
    char* to = out.data() + start;
    const auto* from = reinterpret_cast<const unsigned char*>(bytes.data());
    const auto* const whole = from + bytes.size() / 3 * 3;
    for (; from != whole; from += 3) {
        const unsigned group = static_cast<unsigned>(from[0] << 16 | from[1] << 8 | from[2]);
        *to++ = digits[group >> 18];
        *to++ = digits[group >> 12 & 63];
        *to++ = digits[group >> 6 & 63];
        *to++ = digits[group & 63];
    }
    const std::size_t left = bytes.size() % 3;
    if (left == 0)
        return;
    const unsigned group = static_cast<unsigned>(from[0] << 16 | (left == 2 ? from[1] << 8 : 0));
    to[0] = digits[group >> 18];
    to[1] = digits[group >> 12 & 63];
    if (left == 2)
        to[2] = digits[group >> 6 & 63];
}

std::optional<std::string> base64_decoded(std::string_view text) {
    while (text.ends_with('='))
        text.remove_suffix(1);
    std::string bytes;
    bytes.reserve(text.size() * 3 / 4);
    unsigned bits = 0, held = 0;
    for (const char c : text) {
        unsigned value;
        if (c >= 'A' && c <= 'Z')
            value = c - 'A';
        else if (c >= 'a' && c <= 'z')
            value = c - 'a' + 26;
        else if (c >= '0' && c <= '9')
            value = c - '0' + 52;
        else if (c == '+' || c == '-')
            value = 62;
        else if (c == '/' || c == '_')
            value = 63;
        else
            return std::nullopt;
        held = (held << 6 | value) & 0xffff;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            bytes += static_cast<char>(held >> bits & 0xff);
        }
    }
    if (text.size() % 4 == 1)
        return std::nullopt;
    return bytes;
}

}  // namespace outbox
