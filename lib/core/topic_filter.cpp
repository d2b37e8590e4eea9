#include "core/topic_filter.hpp"

#include "core/text.hpp"

namespace outbox {

bool pattern_matches(std::string_view pattern, std::string_view text) noexcept {
    // Greedy, with one point to go back to: the last `*`. Linear in practice, and never worse than
    // the length of the pattern times the length of the text.
    std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
    while (t < text.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            resume = t;
        } else if (p < pattern.size() && pattern[p] == text[t]) {
            p++;
            t++;
        } else if (star != std::string_view::npos) {
            p = star + 1;
            t = ++resume;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*')
        p++;
    return p == pattern.size();
}

Result<TopicFilter> TopicFilter::parse(std::string_view list) {
    TopicFilter filter;
    bool everything = false;
    while (true) {
        std::size_t comma = list.find(',');
        std::string_view pattern = trim(list.substr(0, comma));
        if (pattern.empty())
            return Error{ErrorKind::invalid_value, "topic pattern is empty", "",
                         "Write a list such as \"video.*, user.events\"."};
        if (pattern == "*")
            everything = true;
        filter.patterns_.emplace_back(pattern);
        if (comma == std::string_view::npos)
            break;
        list.remove_prefix(comma + 1);
    }
    if (everything)
        filter.patterns_.clear();
    return filter;
}

bool TopicFilter::matches(std::string_view topic) const noexcept {
    if (patterns_.empty())
        return true;
    for (const std::string& pattern : patterns_)
        if (pattern_matches(pattern, topic))
            return true;
    return false;
}

}  // namespace outbox
