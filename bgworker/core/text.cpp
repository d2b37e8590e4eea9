#include "text.hpp"

#include <chrono>
#include <cstdio>

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

void append_timestamp(std::string& out, std::int64_t unix_micros) {
    using namespace std::chrono;
    const sys_time<microseconds> time{microseconds{unix_micros}};
    const auto day = floor<days>(time);
    const year_month_day date{day};
    const hh_mm_ss clock{time - day};
    char text[64];
    const int length = std::snprintf(
        text, sizeof text, "%04d-%02u-%02uT%02d:%02d:%02d.%06dZ", static_cast<int>(date.year()),
        static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
        static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
        static_cast<int>(clock.seconds().count()), static_cast<int>(clock.subseconds().count()));
    out.append(text, static_cast<std::size_t>(length));
}

void append_json_string(std::string& out, std::string_view text) {
    static constexpr char hex[] = "0123456789abcdef";
    out += '"';
    for (char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < ' ') {
            out += "\\u00";
            out += hex[static_cast<unsigned char>(c) >> 4];
            out += hex[static_cast<unsigned char>(c) & 0xf];
        } else {
            out += c;
        }
    }
    out += '"';
}

}  // namespace outbox
