// outboxctl event and enqueue: single events of pg_outbox.
#include <chrono>
#include <cstdio>
#include <thread>

#include "commands.hpp"
#include "table.hpp"

namespace outboxctl {

namespace {

struct NewEvent {
    std::string aggregate_type, aggregate_id, event_type;
    Parameter payload, topic, key, headers;
};

void add_enqueue(Command app, Session& session) {
    add_command<NewEvent>(
        app, "enqueue", "Enqueues one event.",
        "  outboxctl enqueue order 42 OrderPlaced '{\"total\": 10}'\n"
        "  outboxctl enqueue order 42 OrderPlaced '{}' --topic test.events --key ''\n",
        [](Command command, NewEvent& event) {
            command.argument("aggregate_type", event.aggregate_type).required();
            command.argument("aggregate_id", event.aggregate_id).required();
            command.argument("event_type", event.event_type).required();
            command.argument("payload", event.payload, "JSON; default: none");
            command.option("--topic", event.topic, "Default: AGGREGATE_TYPE.events");
            command.option("--key", event.key, "Ordering key; default: the aggregate id");
            command.option("--headers", event.headers, "A JSON object");
        },
        [&session](const NewEvent& event) {
            std::string call = "SELECT outbox.enqueue($1, $2, $3, $4::jsonb";
            std::vector<Parameter> parameters = {event.aggregate_type, event.aggregate_id,
                                                 event.event_type, event.payload};
            add_argument(call, parameters, "topic", event.topic);
            add_argument(call, parameters, "ordering_key", event.key);
            add_argument(call, parameters, "headers", event.headers, "::jsonb");
            session.report(call + ") AS event_id", parameters,
                           [](const Result& result) { return std::string(result.text(0, 0)); });
        });
}

// ---------------------------------------------------------------------------------------------
// Looking at events
// ---------------------------------------------------------------------------------------------

struct EventId {
    std::string id;
};

// Columns for people; the payload as text.
constexpr const char* columns =
    "event_id, date_trunc('milliseconds', occurred_at) AS occurred_at, topic, event_type, "
    "aggregate_id, version, payload_text";

// A role that may not read events still sees where one is.
void show(Session& session, const EventId& one) {
    const bool readable =
        session.query("SELECT has_function_privilege('outbox.find_event(uuid)', 'EXECUTE')")
            .text(0, 0) == "t";
    const std::string event = readable ? "FROM outbox.find_event($1::uuid)" : "";
    if (session.json) {
        session.report(
            "SELECT (SELECT to_json(e) " +
                (readable ? event + " AS e" : "FROM (SELECT) AS e LIMIT 0") +
                ") AS event, (SELECT json_agg(s) FROM outbox.event_status($1::uuid) AS s) AS "
                "destinations",
            {one.id}, {});
        return;
    }
    if (readable && session.show(event, {one.id}) > 0)
        std::printf("\n");
    session.show("FROM outbox.event_status($1::uuid)", {one.id});
}

void add_show(Command group, Session& session) {
    add_command<EventId>(
        group, "show", "Shows an event, and where it is at each destination, since when and why.",
        "  outboxctl event show 019a5c1e-8d3c-7c3e-9d0a-2f6f3c1b7e55\n",
        [](Command command, EventId& one) { command.argument("event_id", one.id).required(); },
        [&session](const EventId& one) { show(session, one); });
}

struct Search {
    Parameter aggregate_type, aggregate_id, since, type, key, topic;
    int limit = 100;
};

// A time as PostgreSQL reads it, or "10 minutes ago".
void add_since(std::string& call, std::vector<Parameter>& parameters, const Parameter& since) {
    constexpr std::string_view ago = " ago";
    if (since && since->ends_with(ago))
        add_argument(call, parameters, "since", since->substr(0, since->size() - ago.size()),
                     "::interval * -1 + now()");
    else
        add_argument(call, parameters, "since", since, "::timestamptz");
}

void add_find(Command group, Session& session) {
    add_command<Search>(
        group, "find", "Finds events in the log, the latest first.",
        "  outboxctl event find --aggregate-type order --aggregate-id 42\n"
        "  outboxctl event find --since '10 minutes ago' --type OrderPlaced --json\n",
        [](Command command, Search& search) {
            command.option("--aggregate-type", search.aggregate_type);
            command.option("--aggregate-id", search.aggregate_id);
            command.option("--since", search.since, "Events that occurred at this time or later");
            command.option("--type", search.type, "Event type");
            command.option("--key", search.key, "Ordering key");
            command.option("--limit", search.limit, "Highest number of events").positive();
        },
        [&session](const Search& search) {
            std::vector<Parameter> parameters = {std::to_string(search.limit)};
            std::string call = "FROM outbox.find_events(\"limit\" => $1::integer";
            add_argument(call, parameters, "aggregate_type", search.aggregate_type);
            add_argument(call, parameters, "aggregate_id", search.aggregate_id);
            add_since(call, parameters, search.since);
            add_argument(call, parameters, "type", search.type);
            add_argument(call, parameters, "key", search.key);
            session.list(columns, call + ")", parameters);
        });
}

constexpr auto between_tails = std::chrono::milliseconds(500);

// Events that the snapshot $1 does not see, and where the next look begins. A higher position may
// commit earlier, so positions cannot say what is new.
constexpr const char* news = R"(
WITH now AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot)
SELECT now.snapshot, e.event_id, to_char(e.occurred_at, 'YYYY-MM-DD HH24:MI:SS.MS'), e.topic, e.event_type,
       e.aggregate_id, e.version, outbox_internal.for_client(outbox.payload_text(e.content_type, e.payload)), to_json(e)
  FROM now
  LEFT JOIN (SELECT position, xid, occurred_at, event_id, version, schema_version, source_event_id,
                    outbox_internal.for_client(topic) AS topic,
                    outbox_internal.for_client(aggregate_type) AS aggregate_type,
                    outbox_internal.for_client(aggregate_id) AS aggregate_id,
                    outbox_internal.for_client(event_type) AS event_type,
                    outbox_internal.for_client(ordering_key) AS ordering_key,
                    outbox_internal.for_client(content_type) AS content_type,
                    outbox_internal.for_client(headers) AS headers, payload, only_to
               FROM outbox.event
              WHERE xid >= pg_snapshot_xmax($1::pg_snapshot)
                 OR xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::pg_snapshot)))) AS e
    ON ($2::text IS NULL
        OR e.topic LIKE replace(replace(replace(replace($2, E'\\', E'\\\\'), '%', E'\\%'), '_', E'\\_'), '*', '%'))
   AND ($3::text IS NULL OR e.event_type = $3)
   AND ($4::text IS NULL OR e.aggregate_type = $4) AND ($5::text IS NULL OR e.aggregate_id = $5)
 ORDER BY e.position)";

void print_event(const Result& rows, int row, bool json) {
    std::string line(json ? rows.text(row, 8) : "");
    for (int column = 1; !json && column < 8; column++)
        line += (column > 1 ? "  " : "") + printable(rows.text(row, column));
    std::printf("%s\n", line.c_str());
}

[[noreturn]] void tail(Session& session, const Search& search) {
    std::string seen(session.query("SELECT pg_current_snapshot()").text(0, 0));
    for (;;) {
        const Result rows = session.query(
            news, {seen, search.topic, search.type, search.aggregate_type, search.aggregate_id});
        for (int row = 0; row < rows.rows(); row++)
            if (!rows.is_null(row, 1))
                print_event(rows, row, session.json);
        std::fflush(stdout);
        seen = rows.text(0, 0);
        std::this_thread::sleep_for(between_tails);
    }
}

void add_tail(Command group, Session& session) {
    add_command<Search>(
        group, "tail", "Prints events as they commit, until it is stopped.",
        "  outboxctl event tail\n"
        "  outboxctl event tail --topic 'order.*' --json\n",
        [](Command command, Search& search) {
            command.option("--topic", search.topic, "Topic; * stands for any characters");
            command.option("--type", search.type, "Event type");
            command.option("--aggregate-type", search.aggregate_type);
            command.option("--aggregate-id", search.aggregate_id);
        },
        [&session](const Search& search) {
            if (session.one_of_several)
                throw WrongUsage("tail works on one database");
            tail(session, search);
        });
}

}  // namespace

void add_event_commands(Command app, Session& session) {
    const Command event = app.group("event", "Single events");
    add_show(event, session);
    add_find(event, session);
    add_tail(event, session);
    add_enqueue(app, session);
}

}  // namespace outboxctl
