// Commands that print the rows of a view or function.
#pragma once

#include <string>

#include "commands.hpp"

namespace outboxctl {

struct Listing {
    std::string command;
    std::string help;
    std::string columns;  // of the table; JSON has all columns
    std::string from;     // the view or function, with its schema
    std::string key{};    // column that an optional argument selects by, or empty
    std::string order = key;
};

// Adds the command, with --watch to repeat it.
void add_listing(Command group, Session& session, const Listing& listing);

}  // namespace outboxctl
