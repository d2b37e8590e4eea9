// What Pub/Sub calls a topic.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Why it cannot be the id of a topic; nothing: it can.
std::optional<std::string> invalid_topic_id(std::string_view id);

// "/v1/projects/<project>/topics/<id>", as it stands in a request.
std::string topic_path(std::string_view project, std::string_view id);

}  // namespace outbox
