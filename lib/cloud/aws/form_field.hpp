// Writes forms, the bodies of requests in the query protocol of AWS.
#pragma once

#include <string>
#include <string_view>

#include "core/percent.hpp"

namespace outbox {

// Appends a field: "&name=value". The name must not need encoding.
inline void append_form_field(std::string& out, std::string_view name, std::string_view value) {
    if (!out.empty())
        out += '&';
    out += name;
    out += '=';
    append_percent_encoded(out, value);
}

}  // namespace outbox
