// Makes the settings of a relay from the settings of its database and the row of its destination.
#pragma once

#include <string>
#include <vector>

#include "core/destination.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/relay/relay.hpp"
#include "relay/configure/config.hpp"
#include "relay/serve/calls.hpp"

namespace outbox::relay {

// Settings of the database.
struct DatabaseSettings {
    std::string edition;
    std::string version;
    std::string database;
    std::string system_identifier;
    DestinationDefaults defaults;
    Pipeline::Limits limits;
    Micros save_interval = seconds(1);
    Micros expression_timeout = seconds(1);
    bool notifies = true;  // enqueues notify a relay that rests
    bool is_utf8 = true;   // otherwise rows may have texts that it cannot send

    bool operator==(const DatabaseSettings&) const = default;
};
DatabaseSettings read_settings(const std::vector<calls::Setting>& settings);

// Returns the destination that a row describes, with the credentials of the process.
Result<Destination> make_destination(const calls::DestinationRow& row,
                                     const DatabaseSettings& settings,
                                     const DatabaseConfig& database, const RelayConfig& config);

}  // namespace outbox::relay
