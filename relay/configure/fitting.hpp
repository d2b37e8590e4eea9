// Whether a database is one that this outbox-relay can serve.
#pragma once

#include <optional>
#include <string_view>

#include "core/result.hpp"

namespace outbox::relay {

// Returns what is wrong if pg_outbox in the database is of a version that this program does not fit: the
// first two numbers must be the same.
std::optional<Error> version_problem(std::string_view of_database);

// Says that the server is a standby, of which nothing can be delivered.
Error is_standby();

}  // namespace outbox::relay
