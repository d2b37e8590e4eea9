// Options of destinations that are the inbox of another database.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/destination.hpp"

namespace outbox {

struct PostgresqlOptions {
    std::string destination;  // name of the destination
    std::string source;       // the database that events come from
    std::string consumer;     // of the inbox; empty for the name of its database
    std::size_t batch_size = 0;
    TimeLimits limits;
    AllowedHosts allowed_hosts;

    // Parameters of the connection, with all defaults applied.
    std::string host, port, database, role;
    // Further parameters of the URL, for libpq.
    std::vector<std::pair<std::string, std::string>> parameters;
    std::string password, ssl_cert, ssl_key;
    std::string needs_password_because;  // empty if it need not have one

    // Files that libpq opens.
    std::vector<std::string> files() const;
};

PostgresqlOptions postgresql_options(const Destination& destination);

extern const SinkDeclaration postgresql_declaration;

}  // namespace outbox
