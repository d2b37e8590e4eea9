// Content types (RFC 9110, section 8.3). This is the one place that decides whether a text is a
// content type, and whether it promises JSON.
//
// enqueue(), the views of the log and the encoders of the sinks all use it. If two of them
// disagreed, bytes that have not been checked would become a part of a JSON document.
#pragma once

#include <optional>
#include <string_view>

#include "core/text.hpp"

namespace outbox {

// Characters of a token (RFC 9110, section 5.6.2): of types, and of names of headers.
inline bool is_token_character(char c) noexcept {
    constexpr std::string_view others = "!#$%&'*+-.^_`|~";
    return (c >= '0' && c <= '9') || (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z') ||
           others.find(c) != std::string_view::npos;
}

struct ContentType {
    // Both exclude parameters and keep the case in which they were written.
    std::string_view type;
    std::string_view subtype;

    // True if the type promises JSON: application/json, or a subtype that ends with "+json".
    bool is_json() const noexcept;

    // Returns std::nullopt if the text is not a media type: it has blanks around it, a type without
    // a subtype, a parameter without a name, or a quoted text that does not end. Parameters are
    // allowed.
    static std::optional<ContentType> parse(std::string_view text) noexcept;
};

}  // namespace outbox
