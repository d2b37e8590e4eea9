// outboxctl backfill: starts, watches, pauses, resumes and cancels backfills.
#include "commands.hpp"
#include "progress.hpp"

namespace outboxctl {

namespace {

struct NewBackfill {
    std::string table;
    Parameter destination, batch, rate, max_pending;
};

void add_start(Command group, Session& session) {
    add_command<NewBackfill>(
        group, "start", "Delivers a snapshot event of each row of a captured table.",
        "  outboxctl backfill start catalog.video\n"
        "  outboxctl backfill start video --destination search --rate 5000\n",
        [](Command command, NewBackfill& backfill) {
            command.argument("table", backfill.table).required();
            command.option("--destination", backfill.destination, "Only for this destination");
            command.option("--batch", backfill.batch, "Rows per transaction");
            command.option("--rate", backfill.rate, "Highest number of rows per second");
            command.option("--max-pending", backfill.max_pending,
                           "Wait while a destination has more events than this before it");
        },
        [&session](const NewBackfill& b) {
            std::vector<Parameter> parameters = {session.table(b.table)};
            std::string call = "SELECT outbox.backfill($1::regclass";
            add_argument(call, parameters, "destination", b.destination);
            add_argument(call, parameters, "batch", b.batch);
            add_argument(call, parameters, "rate", b.rate);
            add_argument(call, parameters, "max_pending", b.max_pending);
            session.report(call + ") AS id", parameters, [](const Result& result) {
                const std::string id(result.text(0, 0));
                return "backfill " + id + " started; outboxctl backfill watch " + id;
            });
        });
}

struct Which {
    std::string id;
};

void bind_id(Command command, Which& which) {
    command.argument("id", which.id, "As `start` printed it").required().positive();
}

void add_status(Command group, Session& session) {
    add_command<Which>(
        group, "status", "Lists backfills with their progress, the latest first.",
        "  outboxctl backfill status\n"
        "  outboxctl backfill status 42 --json\n",
        [](Command command, Which& which) {
            command.argument("id", which.id, "Only this backfill").positive();
        },
        [&session](const Which& which) {
            session.list(
                "id, \"table\", destination, state, rows_done, rows_estimated, percent, rate, "
                "date_trunc('second', expected_end) AS expected_end, waiting_for, locked_rows, "
                "last_error",
                "FROM outbox.backfill_progress WHERE $1 IN ('', id::text) ORDER BY id DESC",
                {which.id});
        });
}

void add_action(Command group, Session& session, const std::string& name, const std::string& done,
                const std::string& help) {
    add_command<Which>(group, name, help, "  outboxctl backfill " + name + " 42\n", bind_id,
                       [&session, name, done](const Which& which) {
                           session.report("SELECT $1::bigint AS id, '" + done +
                                              "' AS state FROM outbox." + name +
                                              "_backfill($1::bigint)",
                                          {which.id}, [&which, &done](const Result&) {
                                              return "backfill " + which.id + " is " + done;
                                          });
                       });
}

// ---------------------------------------------------------------------------------------------
// Watching
// ---------------------------------------------------------------------------------------------

// [######        ]  41.5 %  415000 of 1000000 rows, 52000/s, 00:00:11 left; waits for ...
std::string line_of(const Result& row) {
    const auto text = [&](int column) { return std::string(row.text(0, column)); };
    std::string line =
        bar_of(std::stod(text(1)), 100) + "  " + text(2) + " of " + text(3) + " rows";
    if (text(0) != "running")
        return line + ", " + text(0) + (text(7).empty() ? "" : ": " + text(7));
    line += ", " + text(4) + "/s";
    if (!text(5).empty())
        line += ", " + text(5) + " left";
    if (!text(6).empty())
        line += "; waits for " + text(6);
    return line;
}

void watch(Session& session, const std::string& id) {
    Progress progress(session.json);
    std::string state = "running";
    while (state == "running") {
        const Result row = session.query(
            "SELECT state, percent, rows_done, rows_estimated, rate, "
            "greatest(date_trunc('second', expected_end - clock_timestamp()), '0'), waiting_for, "
            "last_error, to_json(p) FROM outbox.backfill_progress AS p WHERE id = $1",
            {id});
        if (row.rows() == 0)
            throw Refused("ERROR:  backfill " + id + " does not exist");
        state = row.text(0, 0);
        progress.show(session.json ? std::string(row.text(0, 8)) : line_of(row));
        if (state == "running")
            progress.pause();
    }
    if (state == "failed")
        throw Refused("backfill " + id + " has failed");
}

void add_watch(Command group, Session& session) {
    add_command<Which>(group, "watch", "Shows the progress of a backfill until it stops.",
                       "  outboxctl backfill watch 42\n", bind_id,
                       [&session](const Which& which) { watch(session, which.id); });
}

}  // namespace

void add_backfill_commands(Command app, Session& session) {
    Command backfill = app.group("backfill", "Delivers events of existing rows of captured tables");
    add_start(backfill, session);
    add_status(backfill, session);
    add_watch(backfill, session);
    add_action(backfill, session, "pause", "paused", "Stops a backfill until it is resumed.");
    add_action(backfill, session, "resume", "running", "Resumes a paused or failed backfill.");
    add_action(backfill, session, "cancel", "cancelled",
               "Ends a backfill; events already written are delivered.");
}

}  // namespace outboxctl
