#include "console_queries.hpp"

#include <chrono>
#include <cstdio>

#include "figures.hpp"
#include "served_databases.hpp"

namespace outboxctl {

namespace {

constexpr auto max_wait = std::chrono::seconds(5);
constexpr std::size_t max_answer = 8 * 1024 * 1024;

// Payloads that are neither text nor JSON are shown in part, as hexadecimal digits.
constexpr const char* payload =
    "left(headers::text, 20000) AS headers, content_type, left(payload_text, 100000) AS payload, "
    "CASE WHEN payload_text IS NULL THEN encode(substr(payload, 1, 1024), 'hex') END AS "
    "payload_hex, octet_length(payload) AS payload_bytes ";

bool is_outbox(const Side& side) {
    return side.schema == std::string("outbox");
}

// Returns rows as an array of JSON. A role that may not see them gets an object with the error.
std::string rows(Session& session, const std::string& query,
                 const std::vector<Parameter>& parameters = {}) {
    try {
        std::string json(
            session
                .query("SELECT coalesce(json_agg(q), '[]') FROM (" + query + ") AS q", parameters)
                .text(0, 0));
        if (json.size() > max_answer)
            throw Refused("ERROR:  the answer is larger than 8 MB\nHINT:  Use outboxctl instead.");
        return json;
    } catch (const Refused& error) {
        if (error.sqlstate != insufficient_privilege)
            throw;
        return "{\"error\":" + json_string(error.what()) + '}';
    }
}

// Only errors of SQL are shown. Those of connections may quote parts of a connection string, which can
// have a password.
std::string shown(const Refused& error) {
    if (!error.sqlstate.empty() || std::string(error.what()).starts_with("ERROR:"))
        return error.what();
    std::fprintf(stderr, "outboxctl: %s\n", error.what());
    return "could not ask the database; standard error of outboxctl serve says why";
}

std::string overview_of(Session& session) {
    std::string json;
    if (session.has(producer.schema))
        json +=
            ",\"outbox\":" +
            rows(
                session,
                std::string("SELECT s.*, d.url, d.topics, d.dead_letters, d.paused FROM (SELECT ") +
                    figures_of_destinations +
                    " FROM outbox.status) AS s LEFT JOIN outbox.destinations AS d ON "
                    "d.destination = s.name ORDER BY 1 LIMIT 200") +
            ",\"outbox_health\":" + rows(session, "SELECT * FROM outbox.health() LIMIT 100");
    if (session.has(consumer.schema))
        json += ",\"inbox\":" +
                rows(session, std::string("SELECT ") + figures_of_consumers +
                                  ", dead_letters FROM inbox.status ORDER BY 1 LIMIT 200") +
                ",\"inbox_health\":" + rows(session, "SELECT * FROM inbox.health() LIMIT 100");
    return json;
}

std::string journey_in(Session& session, const std::string& event_id) {
    std::string json;
    if (session.has(producer.schema))
        json += ",\"event\":" +
                rows(session,
                     std::string("SELECT event_id, occurred_at, topic, aggregate_type, "
                                 "aggregate_id, event_type, version, ordering_key, "
                                 "source_event_id, position, ") +
                         payload + "FROM outbox.find_event($1::uuid)",
                     {event_id}) +
                ",\"destinations\":" +
                rows(session, "SELECT * FROM outbox.event_status($1::uuid) LIMIT 200", {event_id});
    if (session.has(consumer.schema))
        json += ",\"consumers\":" +
                rows(session, "SELECT * FROM inbox.event_status($1::uuid) LIMIT 200", {event_id});
    return json;
}

// The log is searched backwards. outbox.find_events() has no topic, so of that the latest events are
// looked through.
std::string found_in(Session& session, const Search& search) {
    if (!session.has(producer.schema))
        return "";
    return ",\"events\":" +
           rows(session,
                "SELECT event_id, occurred_at, topic, event_type, left(aggregate_type, 1000) AS "
                "aggregate_type, left(aggregate_id, 1000) AS aggregate_id, left(ordering_key, "
                "1000) AS ordering_key, version FROM outbox.find_events(type => nullif($1, ''), "
                "aggregate_type => nullif($2, ''), aggregate_id => nullif($3, ''), key => "
                "nullif($4, ''), \"limit\" => CASE WHEN $5 = '' THEN 100 ELSE 10000 END) "
                "WHERE $5 IN ('', topic) LIMIT 100",
                {search.event_type, search.aggregate_type, search.aggregate_id, search.ordering_key,
                 search.topic});
}

// The statements that a page of a destination or consumer consists of; $1 is its name.
struct Statements {
    const char *status, *health, *keys, *dead_letters, *operations;
};

constexpr Statements of_destination = {
    .status =
        "SELECT d.url, d.topics, d.relay, d.paused, d.dead_letters, s.* FROM outbox.status "
        "AS s LEFT JOIN outbox.destinations AS d USING (destination) WHERE s.destination = $1",
    .health = "SELECT * FROM outbox.health() WHERE strpos(object, $1) > 0 LIMIT 100",
    .keys =
        "SELECT ordering_key, event_id, state, attempts, next_retry_at, since, waiting, "
        "left(last_error, 2000) AS error FROM outbox.blocked_key WHERE destination = $1 LIMIT "
        "50",
    .dead_letters =
        "SELECT event_id, event_type, aggregate_type, left(aggregate_id, 1000) AS "
        "aggregate_id, left(ordering_key, 1000) AS ordering_key, attempts, "
        "last_failed_at AS died_at, left(last_error, 2000) AS error FROM "
        "outbox.dead_letter WHERE destination = $1 ORDER BY last_failed_at, event_id "
        "LIMIT 100",
    .operations =
        "SELECT requested_at AS at, requested_by AS role, action, events, left(why, "
        "1000) AS why FROM outbox.operations WHERE destination = $1 ORDER BY id DESC "
        "LIMIT 20",
};
constexpr Statements of_consumer = {
    .status = "SELECT * FROM inbox.status WHERE consumer = $1",
    .health = "SELECT * FROM inbox.health() WHERE strpos(object, $1) > 0 LIMIT 100",
    .keys =
        "SELECT left(ordering_key, 1000) AS ordering_key, event_id, attempts, next_attempt_at, "
        "since, left(error, 2000) AS error FROM inbox.waiting_keys WHERE consumer = $1 LIMIT "
        "50",
    .dead_letters =
        "SELECT event_id, event_type, aggregate_type, left(aggregate_id, 1000) AS "
        "aggregate_id, left(ordering_key, 1000) AS ordering_key, attempts, died_at, "
        "left(error, 2000) AS error FROM inbox.dead_letter WHERE consumer = $1 ORDER "
        "BY died_at, event_id LIMIT 100",
    .operations =
        "SELECT at, role, operation AS action, left(why, 1000) AS why FROM "
        "inbox.operations WHERE consumer = $1 ORDER BY id DESC LIMIT 20",
};

}  // namespace

std::string json_string(const std::string& text) {
    std::string json = "\"";
    for (const char c : text) {
        char code[8];
        if (static_cast<unsigned char>(c) < ' ') {
            std::snprintf(code, sizeof code, "\\u%04x", c);
            json += code;
        } else {
            json += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
        }
    }
    return json + '"';
}

// Returns an array of an object for each database; look() makes the members that follow its name. One
// that cannot be asked has a member `error`.
std::string ConsoleQueries::of_each(const std::function<std::string(Session&)>& look) {
    const std::unique_lock lock(mutex_, max_wait);
    if (!lock)
        throw Busy("another request is at work; try again");
    std::string json;
    const auto add = [&](const std::string& id, const std::string& name, const std::string& rest) {
        json += std::string(json.empty() ? "" : ",") + "{\"id\":" + json_string(id) +
                ",\"database\":" + json_string(name) + rest + '}';
    };
    for (std::size_t n = 0; n < databases_.size(); n++) {
        std::string id = std::to_string(n), at = name_in(databases_[n]);
        try {
            for (const std::string& name : served_names(databases_[n], all_)) {
                id = std::to_string(n) + (all_ ? ":" + name : "");
                at = name.empty() ? name_in(databases_[n]) : name;
                Session session;
                session.unattended = true;
                try {
                    session.use(databases_[n], name);
                    session.run_script(limits_of_requests);
                    session.run_script("SET default_transaction_read_only = on");
                    at = session.query("SELECT current_database()").text(0, 0);
                    const std::string found = look(session);
                    if (!found.empty() || !all_)
                        add(id, at, found);
                } catch (const Refused& error) {
                    add(id, at, ",\"error\":" + json_string(shown(error)));
                }
            }
        } catch (const Refused& error) {
            add(id, at, ",\"error\":" + json_string(shown(error)));
        }
    }
    if (json.size() > max_answer)
        throw Refused("ERROR:  the answer is larger than 8 MB\nHINT:  Use outboxctl instead.");
    return '[' + json + ']';
}

// Works in the database with this id: "0", or with --all "0:name".
std::string ConsoleQueries::in(const std::string& database, bool writes,
                               const std::function<std::string(Session&)>& work) {
    const std::size_t colon = database.find(':');
    const std::string number = database.substr(0, colon);
    if (number.empty() || number.size() > 4 ||
        number.find_first_not_of("0123456789") != std::string::npos ||
        std::stoul(number) >= databases_.size() || (colon != std::string::npos) != all_)
        throw WrongUsage("no such database");
    const std::unique_lock lock(mutex_, max_wait);
    if (!lock)
        throw Busy("another request is at work; try again");
    Session session;
    session.unattended = true;
    session.use(databases_[std::stoul(number)], all_ ? database.substr(colon + 1) : "");
    try {
        session.run_script(limits_of_requests);
        if (!writes)
            session.run_script("SET default_transaction_read_only = on");
        return work(session);
    } catch (const Refused& error) {
        throw Refused(shown(error));
    }
}

std::string ConsoleQueries::overview() {
    return of_each(overview_of);
}

std::string ConsoleQueries::journey(const std::string& event_id) {
    if (event_id.size() != 36 ||
        event_id.find_first_not_of("0123456789abcdefABCDEF-") != std::string::npos)
        throw WrongUsage('"' + event_id + "\" is not the id of an event");
    return of_each([&](Session& session) { return journey_in(session, event_id); });
}

std::string ConsoleQueries::find(const Search& search) {
    return of_each([&](Session& session) { return found_in(session, search); });
}

std::string ConsoleQueries::place(const Place& place) {
    const Statements& of = is_outbox(place.side) ? of_destination : of_consumer;
    return in(place.database, false, [&](Session& session) {
        const auto part = [&](const char* name, const char* statement) {
            return std::string(",\"") + name + "\":" + rows(session, statement, {place.name});
        };
        return "{\"database\":" + json_string(PQdb(session.connection())) +
               part("status", of.status) + part("health", of.health) + part("keys", of.keys) +
               part("dead_letters", of.dead_letters) + part("operations", of.operations) + '}';
    });
}

std::string ConsoleQueries::dead_letter(const Place& place, const std::string& event_id) {
    const bool outbox = is_outbox(place.side);
    return in(place.database, false, [&](Session& session) {
        return rows(session,
                    std::string("SELECT event_id, topic, aggregate_type, aggregate_id, event_type, "
                                "version, ordering_key, occurred_at, attempts, first_failed_at, ") +
                        (outbox ? "last_failed_at, left(last_error, 20000) AS error, "
                                : "died_at, sqlstate, left(error, 20000) AS error, left(detail, "
                                  "20000) AS detail, left(hint, 20000) AS hint, left(context, "
                                  "20000) AS context, ") +
                        payload + "FROM " + place.side.schema + ".dead_letter WHERE " +
                        place.side.receiver + " = $1 AND event_id = $2::uuid",
                    {place.name, event_id});
    });
}

std::string ConsoleQueries::operate(const std::string& action, const Place& place,
                                    const std::string& event_ids, const std::string& why) {
    const bool decides = action == "redrive" || action == "discard";
    if (!decides && !is_outbox(place.side))
        throw WrongUsage("only a destination can be paused");
    if (decides && event_ids.empty())
        throw WrongUsage("event_ids are required");
    const std::string call = std::string("SELECT ") + place.side.schema + '.' + action;
    return in(place.database, true, [&](Session& session) {
        const std::string done((decides
                                    ? session.query(call + "($1, $2::uuid[], why => $3)",
                                                    {place.name, '{' + event_ids + '}', why})
                                    : session.query(call + "($1, why => $2)", {place.name, why}))
                                   .text(0, 0));
        return "{\"events\":" + (decides ? done : "null") + '}';
    });
}

}  // namespace outboxctl
