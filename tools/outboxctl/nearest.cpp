#include "nearest.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace outboxctl {

// Levenshtein's distance: the number of characters to insert, delete or replace.
static std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < a.size(); i++) {
        std::size_t diagonal = row[0]++;
        for (std::size_t j = 0; j < b.size(); j++)
            diagonal = std::exchange(row[j + 1], std::min({diagonal + (a[i] == b[j] ? 0 : 1),
                                                           row[j] + 1, row[j + 1] + 1}));
    }
    return row.back();
}

std::string nearest(const std::vector<std::string>& words, const std::string& word) {
    std::string best;
    std::size_t least = word.size() / 2 + 1;  // further away it is another word
    for (const std::string& candidate : words) {
        const std::size_t far = candidate.starts_with(word) ? 0 : distance(word, candidate);
        if (far < least) {
            least = far;
            best = candidate;
        }
    }
    return best;
}

static std::vector<std::string> commands_of(const CLI::App& group) {
    std::vector<std::string> names;
    for (const CLI::App* command : group.get_subcommands({}))
        names.push_back(command->get_name());
    return names;
}

std::string complaint_about_commands(const CLI::App& app) {
    const CLI::App* group = &app;
    std::string name = app.get_name();
    for (auto chosen = group->get_subcommands(); !chosen.empty();
         chosen = group->get_subcommands()) {
        group = chosen.back();
        name += ' ' + group->get_name();
    }
    if (group->get_subcommands({}).empty())
        return "";
    const std::vector<std::string> left = app.remaining(true);
    const auto word = std::find_if(left.begin(), left.end(),
                                   [](const std::string& text) { return !text.starts_with('-'); });
    if (word == left.end())
        return "a command is required: see " + name + " --help";
    const std::string meant = nearest(commands_of(*group), *word);
    return "\"" + *word + "\" is not a command" +
           (meant.empty() ? ": see " + name + " --help"
                          : "; did you mean \"" + name + ' ' + meant + "\"?");
}

}  // namespace outboxctl
