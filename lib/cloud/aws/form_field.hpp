// Forms, the bodies of requests in AWS's query protocol.
#pragma once

#include <string>
#include <string_view>

#include "core/percent.hpp"

namespace outbox {

// Another field of a form: "&name=value". The name needs no encoding.
inline void append_form_field(std::string& out, std::string_view name, std::string_view value) {
    if (!out.empty())
        out += '&';
    out += name;
    out += '=';
    append_percent_encoded(out, value);
}

}  // namespace outbox
