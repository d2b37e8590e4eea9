// Makes destinations of the rows of outbox_internal.relay_destinations() and the credentials of
// relay.toml. Used by --check and by the relay, so that the two cannot disagree.
#pragma once

#include <string>
#include <vector>

#include "core/destination.hpp"
#include "core/result.hpp"
#include "relay/configure/config.hpp"

namespace outbox::relay {

// A row of outbox_internal.relay_destinations(). The owner of a database with the SQL edition can
// replace that function, so the row is a claim.
struct DestinationRow {
    int number = 0;
    std::string name{};
    std::string owner{};
    bool password_required = true;
    bool may_read_files = false;
    std::vector<Option> options{};
    std::vector<Option> mapping_options{};

    bool operator==(const DestinationRow&) const = default;
};

// "name=value", as catalogs store options.
Option option_of(std::string_view text);

// The error for a role that outbox-relay does not log in as: the owner of the database could run code
// with its rights. `power` is an answer to core/powerful_role.hpp.
Error too_powerful(const DatabaseConfig& database, const std::string& role,
                   const std::string& power);

// The same rules as in CREATE SERVER and CREATE USER MAPPING. The option `credentials` names a
// section of relay.toml; default: the name of the destination, if there is such a section. These
// options replace those of the user mapping.
//
// Files and the identity of this machine, and hosts, are for relay.toml to give. A row gives them
// only if the database is trusted, and as far as the owner of the destination has the right.
// The caller sets `source` and `identity`, and in `defaults` what depends on the connection.
Result<Destination> make_destination(const DestinationRow& row, DestinationDefaults defaults,
                                     const DatabaseConfig& database, const RelayConfig& config);

}  // namespace outbox::relay
