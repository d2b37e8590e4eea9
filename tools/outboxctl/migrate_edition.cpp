// outboxctl migrate-edition: from the extension to the SQL edition and back. The files in
// migrate_edition/ say how.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <thread>

#include "commands.hpp"
#include "edition_script.hpp"
#include "new_file.hpp"
#include "table.hpp"

namespace outboxctl {

namespace {

using Clock = std::chrono::steady_clock;

struct Migration {
    std::string to, owner, credentials;
    int lock_timeout = 30;
    bool check = false, yes = false;
};

constexpr auto between_attempts = std::chrono::milliseconds(300);

constexpr const char* prepare = R"(
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = error;
SET LOCAL standard_conforming_strings = on;
SET LOCAL check_function_bodies = off;
SET LOCAL jit = off;
SET LOCAL row_security = off;
SET LOCAL constraint_exclusion = off;
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
)";

void begin(Session& session, const Migration& migration) {
    session.run_script(prepare);
    session.run_script(wait_for_others);
    session.run_script(migration_script);
    session.query("SELECT outbox_migration.read_script($1)", {edition_script});
    session.query("INSERT INTO outbox_migration.request VALUES ($1, $2, $3, $4::boolean)",
                  {migration.to, edition_version,
                   migration.owner.empty() ? Parameter() : Parameter(migration.owner),
                   migration.credentials.empty() ? "f" : "t"});
}

// All reasons at once, each with what to do.
void refuse_if_impossible(Session& session) {
    const Result refusals =
        session.query("SELECT reason, hint FROM outbox_migration.refusals() ORDER BY 1");
    std::string text;
    for (int row = 0; row < refusals.rows(); row++)
        text += (row > 0 ? "\n" : "") + ("ERROR:  " + std::string(refusals.text(row, 0))) +
                "\nHINT:  " + std::string(refusals.text(row, 1));
    if (!text.empty())
        throw Refused(text);
}

// ------------------------------------------------------------------------------------------------
// The transaction
// ------------------------------------------------------------------------------------------------

// A transaction may hold a lock that is waited for here, and wait for one that is held here. Nobody
// else must be the victim of that deadlock, so this gives up before any session looks for deadlocks.
void lock(Session& session) {
    session.run_script(
        "DO $$ BEGIN PERFORM set_config(t.name, (d.setting::integer * 4 / 5)::text, true)"
        " FROM pg_settings AS d, unnest('{statement_timeout,lock_timeout}'::text[]) AS t(name)"
        " WHERE d.name = 'deadlock_timeout'; END $$");
    session.query("SELECT outbox_migration.send_workers_away()");
    session.query("SELECT outbox_migration.list_locks()");
    session.query("SELECT outbox_migration.lock_all()");
    session.run_script("SET LOCAL statement_timeout = 0");
}

void install(Session& session, const Migration& migration) {
    if (migration.to == "native")
        session.query(std::string("CREATE EXTENSION pg_outbox VERSION '") + edition_version + "'");
    else {
        session.query(
            "SELECT set_config('role', owner, true) FROM outbox_migration.request WHERE owner IS "
            "NOT NULL");
        session.run_script(edition_script);
        session.run_script("RESET ROLE");
    }
    session.run_script(
        "SET LOCAL client_min_messages = error; SET LOCAL search_path = pg_catalog, pg_temp");
}

// Returns what it has done, as JSON.
std::string migrate(Session& session, const Migration& migration) {
    begin(session, migration);
    refuse_if_impossible(session);
    lock(session);
    refuse_if_impossible(session);  // again, because something may have changed
    std::unique_ptr<NewFile> file;
    if (!migration.credentials.empty()) {
        const Result secrets = session.query("SELECT outbox_migration.credentials()");
        file = std::make_unique<NewFile>(migration.credentials);
        file->write(std::string(secrets.text(0, 0)));
    }
    session.query("SELECT outbox_migration.put_aside()");
    install(session, migration);
    session.query("SELECT outbox_migration.put_back()");
    std::string result(session.query("SELECT outbox_migration.result()").text(0, 0));
    session.run_script("DROP SCHEMA outbox_migration CASCADE");
    if (file)
        file->keep();  // the answer to COMMIT may get lost
    session.run_script("COMMIT");
    return result;
}

bool may_be_tried_again(const Refused& refused) {
    return refused.sqlstate == "55P03" || refused.sqlstate == "57014" ||
           refused.sqlstate == "40P01";
}

Refused in_the_way(Session& session, const Migration& migration) {
    begin(session, migration);
    const Result found = session.query("SELECT outbox_migration.in_the_way()");
    std::string text = "ERROR:  could not lock the tables of pg_outbox within " +
                       std::to_string(migration.lock_timeout) + " s";
    if (!found.is_null(0, 0))
        text += "\nDETAIL:  In the way: " + std::string(found.text(0, 0)) + ".";
    text +=
        "\nHINT:  Let transactions that have enqueued events end, or end them, and try again. "
        "Nothing has changed.";
    session.run_script("ROLLBACK");
    return Refused(text);
}

using Attempt = std::string (*)(Session& session, const Migration& migration);

std::string when_possible(Session& session, const Migration& migration, Attempt attempt) {
    const auto deadline = Clock::now() + std::chrono::seconds(migration.lock_timeout);
    for (;;) {
        try {
            return attempt(session, migration);
        } catch (const Refused& refused) {
            if (!may_be_tried_again(refused))
                throw;
        }
        session.run_script("ROLLBACK");
        if (Clock::now() >= deadline)
            throw in_the_way(session, migration);
        std::this_thread::sleep_for(between_attempts);
    }
}

// ------------------------------------------------------------------------------------------------
// The command
// ------------------------------------------------------------------------------------------------

void print(Session& session, const std::string& result, const std::string& title) {
    if (session.json) {
        std::printf("%s\n", result.c_str());
        return;
    }
    std::printf("%s\n", title.c_str());
    const Result things = session.query(
        "SELECT t.key AS what, t.value::bigint AS number FROM jsonb_each_text($1::jsonb -> "
        "'moved') AS t "
        "WHERE t.value <> '0' ORDER BY 1",
        {result});
    if (things.rows() > 0)
        std::printf("\n%s\n", table_of(things, things.columns()).c_str());
    const Result advice =
        session.query("SELECT * FROM jsonb_array_elements_text($1::jsonb -> 'advice')", {result});
    for (int row = 0; row < advice.rows(); row++)
        std::printf("%s* %s\n", row == 0 ? "\n" : "", std::string(advice.text(row, 0)).c_str());
}

// Returns what it would do, as JSON. Takes no lock that readers, writers or relays wait for, and changes
// nothing.
std::string foresee(Session& session, const Migration& migration) {
    begin(session, migration);
    refuse_if_impossible(session);
    session.query("SELECT outbox_migration.foresee()");
    std::string result(session.query("SELECT outbox_migration.result()").text(0, 0));
    session.run_script("ROLLBACK");
    return result;
}

bool agreed() {
    if (isatty(STDIN_FILENO) == 0)
        throw Refused("nobody can be asked here\nHINT:  Use --yes, after a look at --check.");
    std::printf("\nMigrate now? Enqueues wait until it is done. [y/N] ");
    std::fflush(stdout);
    std::string answer;
    std::getline(std::cin, answer);
    return answer == "y" || answer == "yes";
}

std::string name_of(const std::string& edition) {
    return edition == "sql" ? "the SQL edition" : "the extension";
}

void run(Session& session, const Migration& migration) {
    session.calls_nothing = true;
    if (migration.check || !migration.yes)
        print(session, when_possible(session, migration, foresee),
              "pg_outbox can become " + name_of(migration.to) + ". It would take along:");
    if (migration.check || (!migration.yes && !agreed()))
        return;
    const std::string result = when_possible(session, migration, migrate);
    print(session, result, "pg_outbox is " + name_of(migration.to) + " now. It has taken along:");
}

void bind(Command command, Migration& migration) {
    command.option("--to", migration.to, "native (the extension) or sql")
        .required()
        .one_of({"native", "sql"});
    command.flag("--check", migration.check, "Say what it would do or refuse, and change nothing");
    command.option("--credentials", migration.credentials,
                   "With --to sql: new file that gets the options of user mappings, as a part "
                   "of relay.toml");
    command.option("--owner", migration.owner,
                   "With --to sql: role that is to own the SQL edition; your role by default");
    command
        .option("--lock-timeout", migration.lock_timeout,
                "Seconds to wait for transactions that have enqueued events; 30 by default")
        .between(0, 86400);
    command.flag("--yes", migration.yes, "Do not ask");
}

}  // namespace

void add_migrate_command(Command app, Session& session) {
    add_command<Migration>(
        app, "migrate-edition",
        "Makes pg_outbox the SQL edition where it is the extension, or the other way round, with "
        "all events, in one transaction. Needs a superuser.",
        "  outboxctl migrate-edition --to native --check -d shop\n"
        "  outboxctl migrate-edition --to native --yes -d shop\n"
        "  outboxctl migrate-edition --to sql --owner shop_owner --credentials new.toml -d shop\n",
        bind, [&session](const Migration& migration) { run(session, migration); });
}

}  // namespace outboxctl
