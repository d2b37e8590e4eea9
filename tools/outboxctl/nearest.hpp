// Suggests a command for a wrong word on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace outboxctl {

// Returns an error message about a word that is not a command, with the nearest command. Empty if all
// commands on the line exist.
std::string complaint_about_commands(const CLI::App& app);

}  // namespace outboxctl
