// How to connect to a database: the parts of its URL, and for missing ones the settings of libpq that
// come from the environment (PGPASSFILE, PGSSLROOTCERT, a service, and so on). Destinations must not
// get the latter, and one of the sinks removes such variables, which is not safe once there are
// threads.
#pragma once

#include <libpq-fe.h>

#include <memory>
#include <string>

#include "core/libpq_limits.hpp"
#include "core/result.hpp"
#include "relay/configure/config.hpp"

namespace outbox::relay {

// Later parameters replace earlier ones.
struct ConnectionParameters {
    LibpqParameters libpq;
    SessionMode mode = SessionMode::automatic;
};

// The first call takes the settings out of the environment. It must come before there are threads.
const LibpqParameters& connection_environment();

using ConnectionOptions = std::unique_ptr<PQconninfoOption, decltype(&PQconninfoFree)>;

// Null if the connection string is not valid. The message of libpq quotes parts of the string,
// which may be a password, so it is not shown.
ConnectionOptions parse_connection_string(const std::string& text);

// Returns what libpq takes for missing parts if a connection string names this service: its values,
// and the environment for the rest. Must be called before connection_environment().
Result<LibpqParameters> parameters_of_service(const std::string& service);

ConnectionParameters connection_parameters(const DatabaseConfig& database,
                                           const LibpqParameters& environment,
                                           const std::string& application);

LibpqConnection connect(const ConnectionParameters& parameters);

}  // namespace outbox::relay
