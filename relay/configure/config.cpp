#include "relay/configure/config.hpp"

#include <algorithm>

#include "core/topic_filter.hpp"

namespace outbox::relay {

bool DatabaseConfig::serves(std::string_view destination) const noexcept {
    return std::any_of(
        destinations.begin(), destinations.end(),
        [&](const std::string& pattern) { return pattern_matches(pattern, destination); });
}

}  // namespace outbox::relay
