// Suggests what was meant by a wrong word.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace outboxctl {

// Returns the word that is most like `word`; empty if none is.
std::string nearest(const std::vector<std::string>& words, const std::string& word);

// Returns an error message about a word that is not a command, with the nearest command. Empty if all
// commands on the line exist.
std::string complaint_about_commands(const CLI::App& app);

}  // namespace outboxctl
