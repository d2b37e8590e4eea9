// Names of topics.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Returns why no topic can have this name, or std::nullopt.
std::optional<std::string> invalid_topic_name(std::string_view name);

}  // namespace outbox
