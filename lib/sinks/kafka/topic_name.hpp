// Names of topics.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Why no topic can have this name; std::nullopt if one can.
std::optional<std::string> invalid_topic_name(std::string_view name);

}  // namespace outbox
