// outboxctl status, destinations, check, pause, resume, seek, replay: destinations of pg_outbox.
#include "confirm.hpp"
#include "listing.hpp"
#include "progress.hpp"

namespace outboxctl {

namespace {

void add_listings(Command app, Session& session) {
    add_listing(app, session,
                {.command = "status",
                 .help = "Shows the state of every destination.",
                 .columns = "destination, state, published, pending_at_most, in_flight, held_keys, "
                            "date_trunc('second', oldest_pending_age) AS oldest_pending_age, "
                            "latency_p99, last_error",
                 .from = "outbox.status",
                 .key = "destination"});
    add_listing(app, session,
                {.command = "destinations",
                 .help = "Lists destinations with their addresses and topics.",
                 .columns = "destination, state, url, topics, backlog_at_most, dead_letters, relay",
                 .from = "outbox.destinations",
                 .key = "destination"});
    add_listing(app, session,
                {.command = "segments",
                 .help = "Lists the segments of the log, and which destinations hold them.",
                 .columns = "number, current, since, pg_size_pretty(size) AS size, held_by",
                 .from = "outbox.segment",
                 .order = "number"});
}

struct Check {
    std::string destination;
    Parameter topic;
};

void add_check(Command app, Session& session) {
    add_command<Check>(
        app, "check", "Tests a destination without sending an event.",
        "  outboxctl check catalog\n"
        "  outboxctl check catalog --topic video.events\n",
        [](Command command, Check& check) {
            command.argument("destination", check.destination).required();
            command.option("--topic", check.topic, "Only this topic");
        },
        [&session](const Check& check) {
            if (session.list("*", "FROM outbox.check_destination($1, $2)",
                             {check.destination, check.topic}, "NOT ok") > 0)
                throw Failing();
        });
}

struct Operation {
    std::string destination, why, target;
    bool dry_run = false, yes = false;
};

void bind_operation(Command command, Operation& operation) {
    command.argument("destination", operation.destination).required();
    command.option("--why", operation.why, "Stored in outbox.operation");
}

void add_switch(Command app, Session& session, const std::string& name, const std::string& done,
                const std::string& help) {
    add_command<Operation>(
        app, name, help, "  outboxctl " + name + " catalog --why 'its database is upgraded'\n",
        bind_operation, [&session, name, done](const Operation& operation) {
            session.report("SELECT $1::text AS destination, '" + done + "' AS state FROM outbox." +
                               name + "($1, why => nullif($2, ''))",
                           {operation.destination, operation.why}, [&](const Result&) {
                               return "destination \"" + operation.destination + "\" is " + done;
                           });
        });
}

void add_seek(Command app, Session& session) {
    add_command<Operation>(
        app, "seek", "Makes a destination go back, or forward, in the log.",
        "  outboxctl seek catalog beginning --dry-run\n"
        "  outboxctl seek catalog '2026-01-31 10:00+00' --why 'restored from a backup'\n"
        "  outboxctl seek catalog end --why 'only test data' --yes\n\n"
        "Back: events behind the target are delivered again. Forward: events before it are never "
        "delivered, and --why must say the reason.\n",
        [](Command command, Operation& operation) {
            bind_operation(command, operation);
            command
                .argument("target", operation.target,
                          "beginning, end, a position, or a time as PostgreSQL reads it")
                .required();
            command.flag("--dry-run", operation.dry_run, "Say what it would do, and do nothing");
            command.flag("--yes", operation.yes, "Do not ask");
        },
        [&session](const Operation& o) {
            if (!o.dry_run)
                confirm("Seek \"" + o.destination + "\" to " + o.target + "?", o.yes);
            session.run(o.dry_run, [&] {
                const std::string position(
                    session
                        .query("SELECT outbox.seek($1, $2, why => nullif($3, ''))",
                               {o.destination, o.target,
                                o.dry_run && o.why.empty() ? "dry run" : o.why})
                        .text(0, 0));
                session.report(
                    std::string("SELECT $1::text AS destination, $2::bigint AS position") +
                        (o.dry_run ? ", outbox.backlog($1::text::name) AS events" : ""),
                    {o.destination, position}, [&](const Result& result) {
                        return o.dry_run ? "would deliver " + std::string(result.text(0, 2)) +
                                               " events above position " + position
                                         : "delivers events above position " + position;
                    });
            });
        });
}

struct Replay {
    std::string destination, why;
    Parameter since, until, topic, aggregate_type, aggregate_id, event_type, key;
    std::vector<std::string> ids;
    bool dry_run = false, yes = false, watch = false;
};

void bind_replay(Command command, Replay& replay) {
    command.argument("destination", replay.destination).required();
    command.option("--since", replay.since, "Events that occurred at this time or later");
    command.option("--until", replay.until, "Events that occurred before this time");
    command.option("--topic", replay.topic, "Topics, as in the option topics of a destination");
    command.option("--aggregate-type", replay.aggregate_type);
    command.option("--aggregate-id", replay.aggregate_id);
    command.option("--type", replay.event_type, "Event type");
    command.option("--key", replay.key, "Ordering key");
    command.option("--event", replay.ids, "Ids of events");
    command.option("--why", replay.why, "Stored in outbox.operation");
    command.flag("--dry-run", replay.dry_run, "Count the events, and deliver none");
    command.flag("--watch", replay.watch, "Show its progress until it is done");
    command.flag("--yes", replay.yes, "Do not ask");
}

constexpr const char* replay_query =
    "SELECT outbox.replay($1, $2::timestamptz, $3::timestamptz, $4, $5, $6, $7, $8, $9::uuid[], "
    "why => nullif($10, ''))";

void watch_replay(Session& session, const std::string& id) {
    Progress progress(session.json);
    for (;;) {
        const Result row = session.query(
            "SELECT p.events - p.waiting, p.events, p.dead, to_json(p) "
            "FROM outbox.replay_progress AS p WHERE p.id = $1",
            {id});
        const std::string done(row.text(0, 0)), all(row.text(0, 1)), dead(row.text(0, 2));
        progress.show(session.json
                          ? std::string(row.text(0, 3))
                          : bar_of(std::stod(done), std::stod(all)) + "  " + done + " of " + all +
                                " events" + (dead == "0" ? "" : ", " + dead + " dead letters"));
        if (done == all)
            return;
        progress.pause();
    }
}

void replay(Session& session, const Replay& r) {
    if (!r.dry_run)
        confirm("Deliver events to \"" + r.destination + "\" again?", r.yes);
    const Parameter ids = r.ids.empty() ? Parameter() : Parameter(array_of(r.ids));
    std::string id;
    session.run(r.dry_run, [&] {
        id = session
                 .query(replay_query, {r.destination, r.since, r.until, r.topic, r.aggregate_type,
                                       r.aggregate_id, r.event_type, r.key, ids, r.why})
                 .text(0, 0);
        session.report("SELECT id, events FROM outbox.replay_progress WHERE id = $1", {id},
                       [&](const Result& result) {
                           const std::string events(result.text(0, 1));
                           return r.dry_run ? "would deliver " + events + " events"
                                            : "replay " + id + " delivers " + events + " events";
                       });
    });
    if (r.watch && !r.dry_run)
        watch_replay(session, id);
}

void add_replay(Command app, Session& session) {
    add_command<Replay>(
        app, "replay", "Delivers a selection of events in the log once more.",
        "  outboxctl replay catalog --since '2026-01-31 10:00+00' --topic 'video.*' --dry-run\n"
        "  outboxctl replay catalog --event 019a5c1e-8d3c-7c3e-9d0a-2f6f3c1b7e55 --yes\n",
        bind_replay, [&session](const Replay& arguments) { replay(session, arguments); });
}

}  // namespace

void add_destination_commands(Command app, Session& session) {
    add_listings(app, session);
    add_check(app, session);
    add_switch(app, session, "pause", "paused", "Stops delivering to a destination.");
    add_switch(app, session, "resume", "resumed", "Goes on delivering to a destination.");
    add_seek(app, session);
    add_replay(app, session);
}

}  // namespace outboxctl
