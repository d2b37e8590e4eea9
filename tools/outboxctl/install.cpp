// outboxctl install: the SQL edition of pg_outbox, for databases that cannot load a library.
#include "commands.hpp"
#include "edition_script.hpp"

namespace outboxctl {

struct InstallArguments {
    std::string edition;
};

// The settings of CREATE EXTENSION.
static constexpr const char* prepare = R"(
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;
SET LOCAL standard_conforming_strings = on;
)";

// A function of another role in the place of version() is not called.
static constexpr const char* find_version = R"(
SELECT p.oid IS NOT NULL, EXISTS (SELECT FROM pg_extension AS e WHERE e.extname = 'pg_outbox')
  FROM (VALUES (1)) AS one
  LEFT JOIN (pg_proc AS p
             JOIN pg_namespace AS n ON n.oid = p.pronamespace AND n.nspname = 'outbox_internal'
                                   AND pg_get_userbyid(n.nspowner) = current_user)
    ON p.proname = 'edition' AND pg_get_userbyid(p.proowner) = current_user
)";

static std::string sentence(const std::string& from) {
    const std::string edition = std::string("the SQL edition of pg_outbox ") + edition_version;
    return from.empty() ? edition + " is installed now" : edition + " was installed already";
}

// The first statement refuses databases, and a server logs a text that fails: not all of the script.
static void run_edition_script(Session& session) {
    const std::string script = edition_script, end = "END $$;\n";
    const size_t first = script.find(end) + end.size();
    session.run_script(script.substr(0, first).c_str());
    session.run_script(script.c_str() + first);
}

// Returns the version that was there before, or an empty string. If the session ends before COMMIT,
// everything is rolled back.
static std::string install_edition(Session& session) {
    session.run_script(prepare);
    session.run_script(wait_for_others);
    std::string from;
    const Result found = session.query(find_version);
    if (found.text(0, 1) == "t")
        throw Refused(
            "ERROR:  pg_outbox is installed as an extension here\n"
            "HINT:  Use ALTER EXTENSION pg_outbox UPDATE.");
    if (found.text(0, 0) == "t")
        from = session.query("SELECT outbox.version()").text(0, 0);
    if (!from.empty() && from != edition_version)
        throw Refused("version " + from +
                      " of pg_outbox is installed here, which cannot be upgraded to " +
                      edition_version + "\nHINT:  Use outboxctl of that version.");
    if (from.empty())
        run_edition_script(session);
    session.run_script("COMMIT");
    return from;
}

void add_edition_command(Command app, Session& session) {
    add_command<InstallArguments>(
        app, "install",
        "Installs the SQL edition of pg_outbox, where its library cannot be loaded. Needs CREATE "
        "on the database.",
        "  outboxctl install --edition sql -d 'host=db.example.com dbname=shop user=shop_owner'\n\n"
        "The role becomes the owner. outbox-relay delivers the events.\n",
        [](Command command, InstallArguments& arguments) {
            command.option("--edition", arguments.edition, "sql").required().one_of({"sql"});
        },
        [&session](const InstallArguments&) {
            const std::string from = install_edition(session);
            session.report("SELECT nullif($1, '') AS \"from\", $2 AS \"to\"",
                           {from, edition_version}, [&](const Result&) { return sentence(from); });
        });
}

}  // namespace outboxctl
