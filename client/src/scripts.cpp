#include "scripts.hpp"

#include <algorithm>
#include <charconv>
#include <map>

namespace inbox {

std::optional<std::vector<const UpgradeScript*>> upgrade_path(
    std::span<const UpgradeScript> scripts, std::string_view from, std::string_view to) {
    // Searches breadth first, so the first script found for a version is on the shortest way.
    std::map<std::string_view, const UpgradeScript*> reached{{from, nullptr}};
    std::vector<std::string_view> next{from};
    for (std::size_t i = 0; i < next.size() && !reached.contains(to); i++)
        for (const UpgradeScript& script : scripts)
            if (script.from == next[i] && reached.emplace(script.to, &script).second)
                next.push_back(script.to);
    if (!reached.contains(to))
        return std::nullopt;

    std::vector<const UpgradeScript*> path;
    for (std::string_view version = to; version != from; version = path.back()->from)
        path.push_back(reached[version]);
    std::reverse(path.begin(), path.end());
    return path;
}

static std::vector<int> numbers_of(std::string_view version) {
    std::vector<int> numbers;
    const char *at = version.data(), *end = at + version.size();
    while (true) {
        numbers.push_back(0);
        at = std::from_chars(at, end, numbers.back()).ptr;
        if (at == end)
            return numbers;
        at++;
    }
}

bool is_newer(std::string_view a, std::string_view b) {
    return numbers_of(a) > numbers_of(b);
}

}  // namespace inbox
