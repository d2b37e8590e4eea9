// Completions for shells and a page for man, made from the declarations of the commands.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace outboxctl {

// Returns the words that can follow these words of a command line, a line each.
std::string completions(const CLI::App& app, const std::vector<std::string>& words);

// Returns the page of the manual, as troff source for section 1.
std::string man_page(const CLI::App& app, const std::string& version);

}  // namespace outboxctl
