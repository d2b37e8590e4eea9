// The databases that outboxctl serve works on.
#pragma once

#include <string>
#include <vector>

namespace outboxctl {

// Settings of each session, so that no request waits for long.
inline constexpr const char* limits_of_requests =
    "SET statement_timeout = '10s'; SET lock_timeout = '1s'";

// Returns the names to use with a connection string: those of all databases of its server, or one empty
// name, which stands for the database of the string. Throws Refused.
std::vector<std::string> served_names(const std::string& database, bool all);

// Returns the name of the database in a connection string, or the whole if it is a name.
std::string name_in(const std::string& database);

}  // namespace outboxctl
