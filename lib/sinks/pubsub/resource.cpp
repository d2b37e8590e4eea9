#include "sinks/pubsub/resource.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

static bool is_letter(char c) {
    return ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z';
}

static bool is_topic_character(char c) {
    constexpr std::string_view others = "-_.~+%";
    return is_letter(c) || (c >= '0' && c <= '9') || others.find(c) != std::string_view::npos;
}

std::optional<std::string> invalid_topic_id(std::string_view id) {
    const bool valid = id.size() >= 3 && id.size() <= 255 && is_letter(id.front()) &&
                       std::all_of(id.begin(), id.end(), is_topic_character) &&
                       !id.starts_with("goog");
    if (valid)
        return std::nullopt;
    return "\"" + std::string(id.substr(0, 255)) +
           "\" cannot be a topic: its id must have 3 to 255 letters, digits and -_.~+%, start with "
           "a "
           "letter, and not start with \"goog\"";
}

std::string topic_path(std::string_view project, std::string_view id) {
    std::string path = "/v1/projects/";
    path += project;
    path += "/topics/";
    for (char c : id) {
        if (c == '%')
            path += "%25";
        else
            path += c;
    }
    return path;
}

}  // namespace outbox
