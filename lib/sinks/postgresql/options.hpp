// Options of a destination that is the inbox of another database.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/destination.hpp"

namespace outbox {

struct PostgresqlOptions {
    std::string destination;  // its name
    std::string source;       // the database events come from
    std::string consumer;     // of the inbox; empty: the name of its database
    std::size_t batch_size = 0;
    TimeLimits limits;
    AllowedHosts allowed_hosts;

    // How to connect, with the defaults filled in.
    std::string host, port, database, role;
    std::vector<std::pair<std::string, std::string>> parameters;  // others of the URL, for libpq
    std::string password, ssl_cert, ssl_key;
    bool password_required = false;

    // The files that libpq opens.
    std::vector<std::string> files() const;
};

PostgresqlOptions postgresql_options(const Destination& destination);

extern const SinkDeclaration postgresql_declaration;

}  // namespace outbox
