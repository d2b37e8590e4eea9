#include "inbox/install.hpp"

#include <optional>
#include <vector>

#include "core/libpq_error.hpp"
#include "inbox/error.hpp"
#include "inbox/transaction.hpp"
#include "installer.hpp"

namespace inbox {

namespace {

// Runs the scripts of CREATE EXTENSION under the same settings. The lock makes processes that
// install at the same time wait; its number is arbitrary.
constexpr const char* prepare = R"(
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;
SET LOCAL check_function_bodies = off;
SET LOCAL standard_conforming_strings = on;
SELECT pg_advisory_xact_lock(7381241094651022914);
)";

constexpr const char* look = R"(
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_inbox'),
       other.nspname, pg_get_userbyid(other.nspowner),
       n.oid IS NULL,
       NOT EXISTS (SELECT FROM pg_depend
                    WHERE refclassid = 'pg_namespace'::regclass AND refobjid = n.oid),
       version.oid IS NOT NULL, nullif(pg_get_userbyid(version.proowner), current_user)
  FROM (VALUES (1)) AS one LEFT JOIN pg_namespace AS n ON n.nspname = 'inbox'
  LEFT JOIN pg_proc AS version
    ON version.pronamespace = n.oid AND version.proname = 'version' AND version.pronargs = 0
  LEFT JOIN pg_namespace AS other
    ON other.nspname IN ('inbox', 'inbox_internal')
   AND pg_get_userbyid(other.nspowner) <> current_user
 ORDER BY other.nspname LIMIT 1
)";

DatabaseError refusal(std::string sqlstate, const std::string& message, const std::string& hint) {
    return {std::move(sqlstate), message + "\nHINT:  " + hint};
}

// Rolls back unless it is committed.
class Installation {
  public:
    Installation(PGconn* connection, const Scripts& scripts)
        : connection_(connection), scripts_(scripts) {
        if (PQstatus(connection) != CONNECTION_OK)
            throw ConnectionLost(outbox::error_of(connection));
        if (PQtransactionStatus(connection) != PQTRANS_IDLE)
            throw DatabaseError(
                "25001", "pg_inbox cannot be installed on a connection that is in a transaction");
        execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
    }
    ~Installation() {
        if (PQtransactionStatus(connection_) != PQTRANS_IDLE)
            PQclear(PQexec(connection_, "ROLLBACK"));
    }
    Installation(const Installation&) = delete;
    Installation& operator=(const Installation&) = delete;

    Installed run() {
        execute(prepare);
        Installed installed{find_version(), std::string(scripts_.version)};
        if (installed.from.empty())
            create();
        else
            upgrade(installed.from);
        execute("COMMIT");
        return installed;
    }

  private:
    Result execute(const char* statements) {
        Result result(PQexec(connection_, statements));
        const ExecStatusType status = PQresultStatus(result.native());
        if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK)
            return result;
        const char* state = PQresultErrorField(result.native(), PG_DIAG_SQLSTATE);
        if (state == nullptr)
            throw ConnectionLost(outbox::error_of(connection_));
        throw DatabaseError(state, PQresultErrorMessage(result.native()));
    }

    // Returns an empty version if pg_inbox is not installed and the schemas are free. Does not call
    // functions of another role, or in its schema: they would run with our privileges.
    std::string find_version() {
        const Result found = execute(look);
        const auto is = [&](int column) { return found.text(0, column) == "t"; };
        const std::string other(found.text(0, 1)), owner(found.text(0, 2));
        if (is(0))
            throw refusal("55000", "pg_inbox is installed as an extension here",
                          "Use ALTER EXTENSION pg_inbox UPDATE.");
        if (!other.empty())
            throw refusal("42501", "schema \"" + other + "\" belongs to role \"" + owner + '"',
                          "Connect as that role.");
        is_missing_ = is(3);
        if (is(4))
            return "";
        if (!is(5))
            throw refusal("42P06", "schema \"inbox\" exists, and does not belong to pg_inbox",
                          "Rename it, or install pg_inbox in another database.");
        if (!found.is_null(0, 6))
            throw refusal(
                "42501",
                "function inbox.version() belongs to role \"" + std::string(found.text(0, 6)) + '"',
                "Find out why it is there; then drop it, or give it to the owner of the schema.");
        return std::string(execute("SELECT inbox.version()").text(0, 0));
    }

    void create() {
        if (is_missing_)
            execute("CREATE SCHEMA inbox");
        run_script(scripts_.create);
    }

    void upgrade(const std::string& from) {
        const auto path = upgrade_path(scripts_.upgrades, from, scripts_.version);
        const std::string there = "version " + from + " of pg_inbox is installed here, ";
        const std::string ours(scripts_.version);
        if (!path && is_newer(from, ours))
            throw refusal("55000", there + "which is newer than " + ours + " of this library",
                          "Use a library of that version, or a newer one.");
        if (!path)
            throw refusal("55000", there + "which cannot be upgraded to " + ours,
                          "Upgrade to a version between them first, with the library of that "
                          "version.");
        for (const UpgradeScript* script : *path)
            run_script(script->text);
    }

    void run_script(const char* text) {
        execute("SET LOCAL search_path = pg_catalog, pg_temp");
        execute(text);
    }

    PGconn* connection_;
    const Scripts& scripts_;
    bool is_missing_ = false;
};

}  // namespace

Installed install(PGconn* connection, const Scripts& scripts) {
    return Installation(connection, scripts).run();
}

Installed install(PGconn* connection) {
    return install(connection, embedded_scripts());
}

}  // namespace inbox
