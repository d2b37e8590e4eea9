#include "sinks/kafka/topic_name.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

std::optional<std::string> invalid_topic_name(std::string_view name) {
    constexpr std::size_t longest = 249;
    const bool legal = !name.empty() && name.size() <= longest && name != "." && name != ".." &&
                       std::all_of(name.begin(), name.end(), [](char c) {
                           const char lower = ascii_lower(c);
                           return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') ||
                                  c == '.' || c == '_' || c == '-';
                       });
    if (legal)
        return std::nullopt;
    return '"' + printable(name, longest) +
           "\" is not the name of a topic: 1 to 249 letters, digits, '.', '_' and '-'";
}

}  // namespace outbox
