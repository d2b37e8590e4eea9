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
    const unsigned group =
        static_cast<unsigned>(from[0] << 16 | (left == 2 ? from[1] << 8 : 0));
    to[0] = digits[group >> 18];
    to[1] = digits[group >> 12 & 63];
    if (left == 2)
        to[2] = digits[group >> 6 & 63];
}

}  // namespace outbox
