// Headers that each request of a destination has: an option with a line "Name: value" for each.
#pragma once

#include <string_view>
#include <vector>

#include "core/result.hpp"

namespace outbox {

struct HeaderLine {
    std::string_view name;
    std::string_view value;
};

// The views refer to `text`. Headers that frame a request, or that sinks fill from the event, are
// refused. Values may be secrets, so errors quote no more than the number of a line.
Result<std::vector<HeaderLine>> parse_header_lines(std::string_view text);

}  // namespace outbox
