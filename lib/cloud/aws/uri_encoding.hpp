// Percent-encoding as signatures and forms of AWS want it: all but letters, digits and "-._~".
#pragma once

#include <string>
#include <string_view>

namespace outbox {

inline void append_uri_encoded(std::string& out, std::string_view text) {
    static constexpr char hex[] = "0123456789ABCDEF";
    for (char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
        if (plain) {
            out += c;
        } else {
            out += '%';
            out += hex[byte >> 4];
            out += hex[byte & 0xf];
        }
    }
}

// Another field of a form: "&name=value". The name needs no encoding.
inline void append_form_field(std::string& out, std::string_view name, std::string_view value) {
    if (!out.empty())
        out += '&';
    out += name;
    out += '=';
    append_uri_encoded(out, value);
}

}  // namespace outbox
