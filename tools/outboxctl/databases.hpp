// The databases that a command works on.
#pragma once

#include <string>
#include <vector>

namespace outboxctl {

// Returns connection strings: those given, then those of the contexts. A context is a name for one or
// more of them, in a TOML file:
//
//     [contexts]
//     shop = "service=shop"
//     all = ["service=shop", "postgresql://oncall@db.example.com/catalog"]
//
// Throws WrongUsage if the file cannot be read, or has no such context. Without databases and contexts
// it returns one empty string: all comes from the environment.
std::vector<std::string> databases(const std::vector<std::string>& given,
                                   const std::vector<std::string>& contexts);

}  // namespace outboxctl
