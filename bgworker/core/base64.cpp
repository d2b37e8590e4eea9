#include "core/base64.hpp"

namespace outbox {

void append_base64(std::string& out, std::string_view bytes) {
    static constexpr char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const std::size_t start = out.size();
    out.resize(start + (bytes.size() + 2) / 3 * 4, '=');
    char* to = out.data() + start;
    const auto byte = [&](std::size_t i) -> unsigned {
        return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0;
    };
    for (std::size_t i = 0; i < bytes.size(); i += 3, to += 4) {
        const unsigned group = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
        to[0] = digits[group >> 18];
        to[1] = digits[group >> 12 & 63];
        if (i + 1 < bytes.size())
            to[2] = digits[group >> 6 & 63];
        if (i + 2 < bytes.size())
            to[3] = digits[group & 63];
    }
}

}  // namespace outbox
