#include "sinks/mqtt/text.hpp"

#include "core/text.hpp"

namespace outbox {

static constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

// Returns the number of bytes of the first character, or 0 if it must not be sent (section 1.5.4).
static std::size_t good_character(std::string_view text) noexcept {
    const auto first = static_cast<unsigned char>(text.front());
    if (first >= ' ' && first < 0x7f)
        return 1;
    const std::size_t length = utf8_length(text);
    if (length <= 1)
        return 0;  // a control character, or not UTF-8
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const bool is_c1 = length == 2 && first == 0xC2 && byte(1) < 0xA0;
    // U+FDD0 to U+FDEF, and the last two of each plane, are not characters.
    const bool is_unused =
        (length == 3 && first == 0xEF &&
         ((byte(1) == 0xB7 && byte(2) >= 0x90 && byte(2) < 0xB0) ||
          (byte(1) == 0xBF && byte(2) >= 0xBE))) ||
        (length == 4 && (byte(1) & 0x0f) == 0x0f && byte(2) == 0xBF && byte(3) >= 0xBE);
    return is_c1 || is_unused ? 0 : length;
}

bool is_mqtt_text(std::string_view text) noexcept {
    if (text.size() > max_mqtt_text)
        return false;
    while (!text.empty()) {
        const std::size_t length = good_character(text);
        if (length == 0)
            return false;
        text.remove_prefix(length);
    }
    return true;
}

void append_mqtt_text(std::string& out, std::string_view text) {
    const std::size_t at = out.size();
    out.append(2, '\0');
    const auto size = [&] { return out.size() - at - 2; };
    while (!text.empty()) {
        const std::size_t length = good_character(text);
        const std::string_view next = length > 0 ? text.substr(0, length) : replacement;
        if (size() + next.size() > max_mqtt_text)
            break;
        out += next;
        const std::size_t bad = utf8_length(text);
        text.remove_prefix(length > 0 ? length : bad > 0 ? bad : 1);
    }
    out[at] = static_cast<char>(size() >> 8);
    out[at + 1] = static_cast<char>(size() & 0xff);
}

}  // namespace outbox
