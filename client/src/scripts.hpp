// The scripts that make pg_inbox, and those that bring it from one version to another.
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
    std::string_view version;  // what `create` makes
    const char* create;
    std::span<const UpgradeScript> upgrades;
};

// Those of this library, made by cmake/EmbedSql.cmake.
const Scripts& embedded_scripts();

// The shortest way from one version to another, as PostgreSQL finds it for extensions; empty when
// they are the same. Nothing: there is none.
std::optional<std::vector<const UpgradeScript*>> upgrade_path(
    std::span<const UpgradeScript> scripts, std::string_view from, std::string_view to);

// Is version `a` newer than `b`? Numbers with dots between them.
bool is_newer(std::string_view a, std::string_view b);

}  // namespace inbox
