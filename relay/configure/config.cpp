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

bool CredentialScope::allows(std::string_view database, std::string_view url) const noexcept {
    return (databases.empty() || matches_one(databases, database)) &&
           (urls.empty() || matches_one(urls, url));
}

}  // namespace outbox::relay
