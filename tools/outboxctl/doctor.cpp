// outboxctl doctor: looks for what is wrong, or will be. Each check returns rows in the shape of
// outbox.health().
#include <chrono>

#include "commands.hpp"

namespace outboxctl {

namespace {

enum class Needs { nothing, outbox, inbox };

struct Finding {
    Needs needs;
    const char* rows;  // $1 is the version of outboxctl, $2 its time in seconds since 1970
};

constexpr Finding findings[] = {
    {Needs::outbox, "SELECT severity, object, what, since, why, what_to_do FROM outbox.health()"},
    {Needs::inbox, "SELECT severity, object, what, since, why, what_to_do FROM inbox.health()"},
    {Needs::outbox,
     "SELECT 'failing', format('destination \"%s\"', d.destination), c.subject, NULL::timestamptz, "
     "c.detail, "
     "'See docs/destinations.md, and the page of its kind.' "
     "FROM outbox.destinations AS d, LATERAL outbox.check_destination(d.destination) AS c "
     "WHERE d.relay = 'internal' AND NOT c.ok"},
    {Needs::outbox,
     "SELECT 'degraded', format('destination \"%s\"', s.destination), 'topics match nothing', "
     "NULL::timestamptz, "
     "'it has delivered nothing, and no event and no captured table has a topic that it selects', "
     "'Check its option topics: the topic of an event is <aggregate type>.events unless another is "
     "given.' "
     "FROM outbox.status AS s WHERE s.published = 0 AND outbox.selects_nothing(s.destination)"},
    {Needs::outbox,
     "SELECT 'degraded', 'pg_outbox', 'versions differ', NULL::timestamptz, "
     "format('outboxctl is %s, pg_outbox in this database %s', $1::text, v), "
     "'Use outboxctl of the same version, or upgrade: ALTER EXTENSION pg_outbox UPDATE.' "
     "FROM outbox.version() AS v WHERE v <> $1::text"},
    {Needs::inbox,
     "SELECT 'degraded', 'pg_inbox', 'versions differ', NULL::timestamptz, "
     "format('outboxctl is %s, pg_inbox in this database %s', $1::text, v), "
     "'Use outboxctl of the same version, or upgrade: ALTER EXTENSION pg_inbox UPDATE, or "
     "outboxctl "
     "inbox install.' FROM inbox.version() AS v WHERE v <> $1::text"},
    {Needs::nothing,
     "SELECT 'failing', 'server', name || ' is off', NULL::timestamptz, "
     "'a crash of the machine can damage the database, its events included', "
     "format('Set %s = on.', name) "
     "FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'"},
    {Needs::nothing,
     "SELECT 'degraded', 'server', 'synchronous_commit is off', NULL::timestamptz, "
     "'a crash can undo transactions that were confirmed to the application, with their events', "
     "'Set synchronous_commit = on where that is not intended.' "
     "FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'off'"},
    {Needs::outbox,
     "SELECT 'degraded', 'server', 'few background workers', NULL::timestamptz, "
     "format('max_worker_processes is %s; this database needs %s, and PostgreSQL and its other "
     "databases more', s.setting, n.needed), "
     "format('Set max_worker_processes = %s or more, and restart the server.', n.needed + 8) "
     "FROM pg_settings AS s, "
     "LATERAL (SELECT 2 + count(*) AS needed FROM outbox.destinations AS d "
     "WHERE d.relay = 'internal') AS n "
     "WHERE s.name = 'max_worker_processes' AND s.setting::integer < n.needed + 3"},
    {Needs::nothing,
     "SELECT 'degraded', 'process ' || pid, 'long transaction', xact_start, "
     "format('role %s, %s: it delays its own events, and keeps segments of the log', usename, "
     "state), "
     "format('See what it does; SELECT pg_terminate_backend(%s) ends it.', pid) "
     "FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
     "AND xact_start < clock_timestamp() - interval '5 minutes'"},
    {Needs::nothing,
     "SELECT 'degraded', format('prepared transaction %L', gid), 'old prepared transaction', "
     "prepared, "
     "'its events are not delivered, and it keeps segments of the log', "
     "format('COMMIT PREPARED %1$L or ROLLBACK PREPARED %1$L.', gid) "
     "FROM pg_prepared_xacts WHERE database = current_database() "
     "AND prepared < clock_timestamp() - interval '5 minutes'"},
    {Needs::nothing,
     "SELECT 'degraded', format('table %s', l.relation::regclass), 'waits for a lock', "
     "l.waitstart, "
     "format('process %s of role %s waits for processes %s', l.pid, a.usename, "
     "pg_blocking_pids(l.pid)), "
     "'End or finish the transactions of these processes.' "
     "FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) "
     "JOIN pg_class AS r ON r.oid = l.relation "
     "WHERE NOT l.granted AND r.relnamespace::regnamespace::text IN ('outbox', 'inbox') "
     "AND l.waitstart < clock_timestamp() - interval '5 seconds'"},
    {Needs::nothing,
     "SELECT 'degraded', 'server', 'clocks differ', NULL::timestamptz, "
     "format('the clock of the server is %s seconds away from the one here', d.seconds), "
     "'Ages and latencies are wrong by as much. Synchronize both with NTP.' "
     "FROM (SELECT round(abs(extract(epoch FROM clock_timestamp()) - $2::text::numeric), 1)) AS d "
     "(seconds) "
     "WHERE d.seconds > 5"},
};

std::string seconds_now() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::to_string(std::chrono::duration<double>(now).count());
}

// One statement for all, so that the table is one table.
void examine(Session& session) {
    const bool outbox = session.has("outbox"), inbox = session.has("inbox");
    if (!outbox && !inbox)
        throw Refused(
            "ERROR:  neither pg_outbox nor pg_inbox is in this database\n"
            "HINT:  Is it the right database? See docs/installing.md.");
    std::string rows;
    for (const Finding& finding : findings) {
        if ((finding.needs == Needs::outbox && !outbox) ||
            (finding.needs == Needs::inbox && !inbox))
            continue;
        rows += std::string(rows.empty() ? "" : " UNION ALL ") + '(' + finding.rows + ')';
    }
    const std::string all = "FROM (" + rows +
                            ") AS finding (severity, object, what, since, why, what_to_do) "
                            "WHERE $1::text IS NOT NULL AND $2::text IS NOT NULL";
    const int found = session.list("*", all, {OUTBOX_VERSION, seconds_now()});
    if (found > 0)
        throw Failing();
}

}  // namespace

void add_doctor_command(Command app, Session& session) {
    add_command<NoArguments>(
        app, "doctor",
        "Looks for what is wrong or will be, with what to do: configuration, destinations, "
        "versions, "
        "workers, locks, clocks. Exit code 3 if it finds something.",
        "  outboxctl doctor\n"
        "  outboxctl doctor --json -d shop\n",
        [](Command, NoArguments&) {}, [&session](const NoArguments&) { examine(session); });
}

}  // namespace outboxctl
