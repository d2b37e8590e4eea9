// The configuration of outbox-relay: plain data, complete and checked. relay/configure makes it
// from relay.toml, the command line and the environment.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "core/option.hpp"
#include "core/session_mode.hpp"
#include "telemetry/tracing.hpp"

namespace outbox::relay {

struct DatabaseConfig {
    std::string name{};  // in logs, metrics and /status; unique

    // A connection string, and a password that replaces the one in it, unless empty. Both are
    // secret.
    std::string url{};
    std::string password{};
    // If the connection string names a service: what libpq takes for the parts that it leaves out.
    std::vector<std::pair<std::string, std::string>> service{};

    // Names of destinations to serve. `*` stands for any run of characters.
    std::vector<std::string> destinations{"*"};
    SessionMode session = SessionMode::automatic;
    // Connections for the statements of destinations, besides the control connection.
    std::size_t connections = 2;
    // Pauses while there is nothing to send. If not set, the session mode has a default.
    std::optional<Micros> poll_min{};
    std::optional<Micros> poll_max{};

    // Identity of the installation, or empty: see sql/pg_outbox/copy.sql.
    std::string identity{};

    // If true, what the database says about its destinations is believed. Otherwise they have no
    // use of this machine: of its files, its identity, and services that listen on it only.
    bool trusted = false;
    // Limits the hosts of destinations; the setting of the database can only narrow it.
    std::optional<std::string> allowed_hosts{};

    bool serves(std::string_view destination) const noexcept;
};

// Names the destinations that may use credentials: those with a URL that matches one of the patterns,
// in databases whose names do. A `*` of a pattern stands for no parameters of a URL that name a host.
struct CredentialScope {
    std::vector<std::string> databases{"*"};
    std::vector<std::string> urls{};
    // They may also use the identity that this machine has in the cloud, as destinations of
    // superusers may.
    bool machine_identity = false;

    bool allows_database(std::string_view database) const noexcept;
    // `parameters_name_host`: the host in the URL is not the one that is connected to.
    bool allows_url(std::string_view url, bool parameters_name_host = false) const noexcept;
};

enum class LogFormat { text, json };
enum class LogLevel { error, warning, info, debug };

struct RelayConfig {
    std::vector<DatabaseConfig> databases;  // at least one

    // Options as in CREATE USER MAPPING, by the name that the option `credentials` of a destination
    // has; default: the name of the destination. They replace options of a user mapping. All are
    // secret. make_destination() (relay/configure/destinations.hpp) applies them.
    std::map<std::string, std::vector<Option>, std::less<>> credentials;
    std::map<std::string, CredentialScope, std::less<>> credential_scopes;  // of the same names

    std::string name;  // of this process in outbox.relay; default: host name and process id
    Micros lease = seconds(15);
    Micros shutdown_timeout = seconds(8);  // to finish what is in flight after SIGTERM

    std::size_t memory = 48 * 1024 * 1024;  // bytes of events, of all destinations

    Tracing tracing;

    std::string listen;  // "host:port" of the HTTP server, or empty
    LogFormat log_format = LogFormat::text;
    LogLevel log_level = LogLevel::info;

    bool once = false;   // drain, then end
    bool check = false;  // check the configuration and all destinations, then end
};

}  // namespace outbox::relay
