// What our sessions set when they begin. The defaults of a database, a role and the environment are meant
// for applications and people: under some of them nothing of ours would ever work.
//
// Where a person has set something for these very sessions, in `options` of the connection string or in
// PGOPTIONS, that stays: it may be a time limit for handlers, or for a command. Of a relay nothing stays.
//
// There is no source file: not everything that is made of lib/core is linked with libpq.
#pragma once

#include <libpq-fe.h>

#include <string>
#include <string_view>

namespace outbox {

// By what runs in them. Each sets what those before it set, and more.
enum class SessionKind {
    handlers,  // code of an application, for which the settings of its role are made
    commands,  // statements of ours, for a person with a role of their own
    relay,     // statements of ours only
};

struct SessionSetting {
    std::string_view name;
    std::string_view value;
    SessionKind from;
    int since = 0;  // PQserverVersion()
};

// All can be set by every role.
inline constexpr SessionSetting session_settings[] = {
    // Otherwise nothing is recorded, and so nothing is ever done.
    {"default_transaction_read_only", "off", SessionKind::handlers},
    // They are for sessions that somebody has forgotten.
    {"idle_in_transaction_session_timeout", "0", SessionKind::handlers},
    {"idle_session_timeout", "0", SessionKind::handlers, 140000},
    {"transaction_timeout", "0", SessionKind::handlers, 170000},
    // Our own limits are those of the programs.
    {"statement_timeout", "0", SessionKind::commands},
    {"lock_timeout", "0", SessionKind::commands},
    {"default_transaction_isolation", "read committed", SessionKind::commands},
    {"default_transaction_deferrable", "off", SessionKind::commands},
    // Names in answers are compared.
    {"quote_all_identifiers", "off", SessionKind::commands},
    {"standard_conforming_strings", "on", SessionKind::commands},
    // To compile a short statement takes longer than to run it.
    {"jit", "off", SessionKind::commands},
    // A person finds tables by the path of their role, and may work in the name of another role.
    {"search_path", "pg_catalog, pg_temp", SessionKind::relay},
    {"role", "none", SessionKind::relay},
    {"client_min_messages", "error", SessionKind::relay},
};

// Returns the columns of a SELECT that sets them. `is_local` is an expression: whether they hold for the
// transaction only, because the server process then serves others. It looks up no name in the search_path.
inline std::string set_session(PGconn* connection, SessionKind kind, std::string_view is_local) {
    const std::string_view given = PQoptions(connection);
    std::string columns;
    for (const SessionSetting& setting : session_settings) {
        const bool is_theirs =
            kind != SessionKind::relay && given.find(setting.name) != std::string_view::npos;
        if (kind < setting.from || PQserverVersion(connection) < setting.since || is_theirs)
            continue;
        columns.append(columns.empty() ? "" : ", ")
            .append("pg_catalog.set_config('")
            .append(setting.name)
            .append("', '")
            .append(setting.value)
            .append("', ")
            .append(is_local)
            .append(")");
    }
    return columns;
}

// An expression of SQL: whether another process than the one that has greeted us runs our statements. So
// it is behind a pooler, unless that keeps a process for a session.
inline std::string runs_elsewhere(PGconn* connection) {
    return "pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.<>) " +
           std::to_string(PQbackendPID(connection));
}

// The settings would be cancelled by the limit that they remove. This runs in front of them, in the
// transaction that the statements of one message are.
inline constexpr std::string_view take_time = "SET LOCAL statement_timeout = 0; ";

}  // namespace outbox
