// The option of a source that names its servers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inbox::worker {

// Returns the hosts and ports of a list such as "a:4222,b", or std::nullopt if it is malformed.
std::optional<std::vector<std::pair<std::string, std::string>>> parse_servers(
    const std::string& list, std::string_view default_port);

}  // namespace inbox::worker
