// The scripts that create pg_inbox and that upgrade it.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace inbox {

struct UpgradeScript {
    std::string_view from, to;  // versions
    const char* text;
};

struct Scripts {
    std::string_view version;  // version that `create` installs
    const char* create;
    std::span<const UpgradeScript> upgrades;
};

// The scripts of this library, made by cmake/EmbedSql.cmake.
const Scripts& embedded_scripts();

// Returns the shortest way from one version to another, as PostgreSQL finds it for extensions. It
// is empty if both are the same, and std::nullopt if there is no way.
std::optional<std::vector<const UpgradeScript*>> upgrade_path(
    std::span<const UpgradeScript> scripts, std::string_view from, std::string_view to);

// True if version `a` is newer than `b`. Versions are numbers separated by dots.
bool is_newer(std::string_view a, std::string_view b);

}  // namespace inbox
