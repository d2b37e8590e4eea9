#include "session.hpp"

#include <cstdio>
#include <string_view>

#include "core/libpq_error.hpp"
#include "core/owners_question.hpp"
#include "table.hpp"

namespace outboxctl {

std::string array_of(const std::vector<std::string>& values) {
    std::string text;
    for (const std::string& value : values) {
        text += text.empty() ? "{\"" : "\",\"";
        for (const char c : value) {
            if (c == '"' || c == '\\')
                text += '\\';
            text += c;
        }
    }
    return text.empty() ? "{}" : text + "\"}";
}

void add_argument(std::string& call, std::vector<Parameter>& parameters, const std::string& name,
                  const std::string& value, const std::string& cast) {
    if (value.empty())
        return;
    parameters.push_back(value);
    call += ", " + name + " => $" + std::to_string(parameters.size()) + cast;
}

Session::~Session() {
    PQfinish(connection_);
}

void Session::set_databases(std::vector<std::string> databases) {
    databases_ = std::move(databases);
    one_of_several = careful = databases_.size() > 1;
}

bool Session::next() {
    if (used_ == databases_.size())
        return false;
    use(databases_[used_++]);
    return true;
}

std::vector<std::string> Session::take_databases() {
    used_ = databases_.size();
    return databases_;
}

void Session::use(const std::string& database, const std::string& name) {
    PQfinish(connection_);
    connection_ = nullptr;
    conninfo_ = database;
    name_ = name;
}

PGconn* Session::connection() {
    if (connection_ == nullptr) {
        // The last value of a name counts. Only the first one may be a connection string, also if
        // it is empty: names of databases are chosen by others.
        const char* names[] = {"dbname", "dbname", "client_encoding", "fallback_application_name",
                               nullptr};
        const char* values[] = {conninfo_.c_str(), name_.empty() ? nullptr : name_.c_str(), "UTF8",
                                "outboxctl", nullptr};
        connection_ = PQconnectdbParams(names, values, 1);
        if (PQstatus(connection_) != CONNECTION_OK)
            throw Refused(outbox::error_of(connection_));
        if (careful)
            refuse_code_of_others();
    }
    return connection_;
}

// The answer comes from pg_catalog alone. A refused connection is closed, so that nothing else uses it.
void Session::refuse_code_of_others() {
    static const std::string question =
        outbox::owners_question("'outbox', 'outbox_internal', 'inbox', 'inbox_internal'");
    const Result path(PQexec(connection_, std::string(outbox::safe_search_path).c_str()));
    const Result danger(PQexec(connection_, question.c_str()));
    const bool asked = PQresultStatus(path.native()) == PGRES_COMMAND_OK &&
                       PQresultStatus(danger.native()) == PGRES_TUPLES_OK;
    if (asked && danger.text(0, 0) == "f")
        return;
    const std::string database = PQdb(connection_), role = PQuser(connection_),
                      error = outbox::error_of(connection_);
    PQfinish(connection_);
    connection_ = nullptr;
    if (!asked)
        throw Refused(error);
    throw Refused("ERROR:  role \"" + role +
                  "\" is or can become a superuser, and pg_outbox or "
                  "pg_inbox in database \"" +
                  database +
                  "\" belongs to roles that are not\n"
                  "DETAIL:  Code of these roles would run as a superuser.\n"
                  "HINT:  Connect as a role that has outbox.grant_monitor() and "
                  "inbox.grant_monitor(), and no more than it needs.");
}

// Returns which of the two the statement needs and the database does not have; empty if it has them,
// or cannot be asked.
static std::string missing_extension(PGconn* connection, const std::string& statement) {
    for (const std::string schema : {"outbox", "inbox"}) {
        if (statement.find(schema + ".") == std::string::npos)
            continue;
        const std::string question = "SELECT to_regclass('" + schema + ".status') IS NULL";
        const Result result(PQexec(connection, question.c_str()));
        if (PQresultStatus(result.native()) == PGRES_TUPLES_OK && result.text(0, 0) == "t")
            return "pg_" + schema;
    }
    return "";
}

static Refused is_missing(PGconn* connection, const std::string& extension) {
    return Refused("ERROR:  " + extension + " is not in database \"" + PQdb(connection) +
                   "\"\nHINT:  Is it the right database? Otherwise use CREATE EXTENSION " +
                   extension +
                   (extension == "pg_inbox" ? ", or outboxctl inbox install."
                                            : ", or outboxctl install --edition sql."));
}

static Refused refusal(const PGresult* result, const char* message) {
    const auto field = [&](int code) {
        const char* text = PQresultErrorField(result, code);
        return std::string(text != nullptr ? text : "");
    };
    const std::string primary = field(PG_DIAG_MESSAGE_PRIMARY), state = field(PG_DIAG_SQLSTATE);
    if (primary.empty())
        return Refused(message);
    std::string text = "ERROR:  " + primary;
    if (!field(PG_DIAG_MESSAGE_DETAIL).empty())
        text += "\nDETAIL:  " + field(PG_DIAG_MESSAGE_DETAIL);
    if (state == "3F000" || state == "42P01" || state == "42883")  // no schema, view, function
        text +=
            "\nHINT:  The extension in this database may be older than outboxctl: see outboxctl "
            "doctor.";
    else if (!field(PG_DIAG_MESSAGE_HINT).empty())
        text += "\nHINT:  " + field(PG_DIAG_MESSAGE_HINT);
    Refused refused(text);
    refused.sqlstate = state;
    return refused;
}

Result Session::query(const std::string& statement, const std::vector<Parameter>& parameters) {
    std::vector<const char*> values;
    for (const Parameter& parameter : parameters)
        values.push_back(parameter ? parameter->c_str() : nullptr);
    Result result(PQexecParams(connection(), statement.c_str(), static_cast<int>(values.size()),
                               nullptr, values.data(), nullptr, nullptr, 0));
    const ExecStatusType status = PQresultStatus(result.native());
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
        return result;
    if (const std::string missing = missing_extension(connection(), statement); !missing.empty())
        throw is_missing(connection(), missing);
    throw refusal(result.native(), PQerrorMessage(connection()));
}

void Session::run_script(const char* statements) {
    const Result result(PQexec(connection(), statements));
    const ExecStatusType status = PQresultStatus(result.native());
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        throw refusal(result.native(), PQerrorMessage(connection()));
}

void Session::run(bool dry, const std::function<void()>& work) {
    run_script("BEGIN");
    work();
    run_script(dry ? "ROLLBACK" : "COMMIT");
}

static void print(std::string_view line) {
    std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
}

int Session::list(const std::string& columns, const std::string& rest,
                  const std::vector<Parameter>& parameters, const std::string& counted) {
    const std::string database = one_of_several ? "current_database() AS database, " : "";
    if (json) {
        const Result all =
            query("SELECT coalesce(json_agg(q), '[]'), count(*) FILTER (WHERE " + counted +
                      ") FROM (SELECT " + database + "* " + rest + ") AS q",
                  parameters);
        print(all.text(0, 0));
        return std::stoi(std::string(all.text(0, 1)));
    }
    const Result rows =
        query("SELECT " + database + columns + ", " + counted + ' ' + rest, parameters);
    print(table_of(rows, rows.columns() - 1));
    int count = 0;
    for (int row = 0; row < rows.rows(); row++)
        count += rows.text(row, rows.columns() - 1) == "t" ? 1 : 0;
    return count;
}

int Session::show(const std::string& rest, const std::vector<Parameter>& parameters) {
    if (json)
        return list("*", rest, parameters);
    const Result rows = query("SELECT * " + rest, parameters);
    for (int row = 0; row < rows.rows(); row++)
        print((row > 0 ? "\n" : "") + record_of(rows, row));
    return rows.rows();
}

void Session::report(const std::string& statement, const std::vector<Parameter>& parameters,
                     const std::function<std::string(const Result&)>& sentence) {
    if (json)
        print(query("SELECT to_json(q) FROM (" + statement + ") AS q", parameters).text(0, 0));
    else
        print(sentence(query(statement, parameters)));
}

}  // namespace outboxctl
