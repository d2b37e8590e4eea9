// Content types (RFC 9110, section 8.3): the one place that says what is one, and what is JSON.
//
// enqueue(), views of the log and the encoders of the sinks all ask here. If two of them disagreed,
// bytes that nobody has checked would become a part of a JSON document.
#pragma once

#include <optional>
#include <string_view>

namespace outbox {

struct ContentType {
    // Both without parameters, in the letters they were written in.
    std::string_view type;
    std::string_view subtype;

    // Does it promise JSON: application/json, or a type that ends with "+json"?
    bool is_json() const noexcept;

    // std::nullopt if the text is not a media type: blanks around it, a type without a subtype,
    // parameters without a name, a quoted text that does not end. Parameters may be there.
    static std::optional<ContentType> parse(std::string_view text) noexcept;
};

}  // namespace outbox
