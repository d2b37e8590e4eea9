#include "core/text.hpp"

#include <algorithm>
#include <chrono>

namespace outbox {

void append_uuid(std::string& out, const Uuid& uuid) {
    static constexpr char hex[] = "0123456789abcdef";
    char text[36];
    char* p = text;
    for (std::size_t i = 0; i < uuid.size(); i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        *p++ = hex[uuid[i] >> 4];
        *p++ = hex[uuid[i] & 0xf];
    }
    out.append(text, sizeof text);
}

// Writes this number of digits, with leading zeros. snprintf() took a tenth of the time of a relay.
static void put_digits(char* to, std::size_t digits, std::uint64_t number) {
    for (std::size_t i = digits; i > 0; i--, number /= 10)
        to[i - 1] = static_cast<char>('0' + number % 10);
}

void append_timestamp(std::string& out, std::int64_t unix_micros) {
    using namespace std::chrono;
    const sys_time<microseconds> time{microseconds{unix_micros}};
    const auto day = floor<days>(time);
    const year_month_day date{day};
    const hh_mm_ss clock{time - day};
    char text[] = "0000-00-00T00:00:00.000000Z";
    const auto put = [&](std::size_t at, std::size_t digits, auto number) {
        put_digits(text + at, digits, static_cast<std::uint64_t>(number));
    };
    put(0, 4, static_cast<int>(date.year()));
    put(5, 2, static_cast<unsigned>(date.month()));
    put(8, 2, static_cast<unsigned>(date.day()));
    put(11, 2, clock.hours().count());
    put(14, 2, clock.minutes().count());
    put(17, 2, clock.seconds().count());
    put(20, 6, clock.subseconds().count());
    out.append(text, sizeof text - 1);
}

void append_json_string(std::string& out, std::string_view text) {
    static constexpr char hex[] = "0123456789abcdef";
    out += '"';
    for (std::size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < ' ') {
            out += "\\u00";
            out += hex[static_cast<unsigned char>(c) >> 4];
            out += hex[static_cast<unsigned char>(c) & 0xf];
        } else if (static_cast<unsigned char>(c) < 0x80) {
            out += c;
        } else if (const std::size_t length = utf8_length(text.substr(i)); length > 0) {
            out += text.substr(i, length);
            i += length - 1;
        } else {
            append_utf8(out, 0xfffd);
        }
    }
    out += '"';
}

void append_json_member(std::string& out, std::string_view name, std::string_view text) {
    append_json_string(out, name);
    out += ':';
    append_json_string(out, text);
}

std::size_t utf8_length(std::string_view text) noexcept {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned first = byte(0);
    if (first < 0x80)
        return 1;
    const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text.size() < length)
        return 0;
    std::uint32_t code = first & (0x7fu >> length);
    for (std::size_t i = 1; i < length; i++) {
        if ((byte(i) & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (byte(i) & 0x3fu);
    }
    static constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < least[length] || code > 0x10ffff || is_surrogate ? 0 : length;
}

void append_utf8(std::string& out, std::uint32_t character) {
    if (character < 0x80) {
        out += static_cast<char>(character);
    } else if (character < 0x800) {
        out += static_cast<char>(0xc0 | character >> 6);
        out += static_cast<char>(0x80 | (character & 0x3f));
    } else if (character < 0x10000) {
        out += static_cast<char>(0xe0 | character >> 12);
        out += static_cast<char>(0x80 | (character >> 6 & 0x3f));
        out += static_cast<char>(0x80 | (character & 0x3f));
    } else {
        out += static_cast<char>(0xf0 | character >> 18);
        out += static_cast<char>(0x80 | (character >> 12 & 0x3f));
        out += static_cast<char>(0x80 | (character >> 6 & 0x3f));
        out += static_cast<char>(0x80 | (character & 0x3f));
    }
}

// The code point of a valid character of two to four bytes.
static std::uint32_t code_of(std::string_view character) noexcept {
    std::uint32_t code = static_cast<unsigned char>(character[0]) & (0x7fu >> character.size());
    for (const char c : character.substr(1))
        code = code << 6 | (static_cast<unsigned char>(c) & 0x3fu);
    return code;
}

// True for characters that a terminal or a viewer interprets instead of showing.
static bool is_invisible(std::uint32_t code) noexcept {
    return (code >= 0x80 && code <= 0x9f)         // C1
           || code == 0x61c                       // Arabic letter mark
           || (code >= 0x200b && code <= 0x200f)  // zero width, direction marks
           || (code >= 0x2028 && code <= 0x202e)  // separators, embeddings, overrides
           || (code >= 0x2060 && code <= 0x206f)  // isolates, invisible operators
           || code == 0xfeff || (code >= 0xfff9 && code <= 0xfffb) ||
           (code >= 0xe0000 && code <= 0xe007f);  // tags
}

std::string printable(std::string_view text, std::size_t max_size) {
    std::string line;
    text = trim(text);
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = utf8_length(text.substr(i));
        const std::string_view character = text.substr(i, std::max<std::size_t>(length, 1));
        const bool is_control =
            length == 1 && (static_cast<unsigned char>(text[i]) < ' ' || text[i] == 0x7f);
        const std::string_view shown =
            length == 0                                                      ? "?"
            : is_control || (length > 1 && is_invisible(code_of(character))) ? " "
                                                                             : character;
        if (line.size() + shown.size() > max_size)
            break;
        line += shown;
        i += character.size();
    }
    return std::string(trim(line));
}

}  // namespace outbox
