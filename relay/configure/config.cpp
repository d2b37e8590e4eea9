#include "relay/configure/config.hpp"

#include <algorithm>

#include "core/topic_filter.hpp"

namespace outbox::relay {

static bool matches_one(const std::vector<std::string>& patterns, std::string_view text) noexcept {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return pattern_matches(pattern, text); });
}

bool DatabaseConfig::serves(std::string_view destination) const noexcept {
    return matches_one(destinations, destination);
}

bool CredentialScope::allows_database(std::string_view database) const noexcept {
    return matches_one(databases, database);
}

bool CredentialScope::allows_url(std::string_view url, bool parameters_name_host) const noexcept {
    const auto parameters = [](std::string_view text) {
        return std::min(text.find('?'), text.size());
    };
    return std::any_of(urls.begin(), urls.end(), [&](std::string_view pattern) {
        if (pattern == "*")
            return true;
        const std::size_t written = parameters(pattern), given = parameters(url);
        return pattern_matches(pattern.substr(0, written), url.substr(0, given)) &&
               (written == pattern.size()
                    ? !parameters_name_host
                    : pattern_matches(pattern.substr(written), url.substr(given)));
    });
}

}  // namespace outbox::relay
