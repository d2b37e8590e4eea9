// Names of topics in Pub/Sub.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Returns why the text is not valid as the id of a topic, or std::nullopt if it is.
std::optional<std::string> invalid_topic_id(std::string_view id);

// Returns "/v1/projects/<project>/topics/<id>", the path in requests.
std::string topic_path(std::string_view project, std::string_view id);

}  // namespace outbox
