#include "session.hpp"

#include <cstdio>
#include <string_view>

#include "table.hpp"

namespace outboxctl {

Session::~Session() {
    PQfinish(connection_);
}

PGconn* Session::connection() {
    if (connection_ == nullptr) {
        const char* names[] = {"dbname", "client_encoding", "fallback_application_name", nullptr};
        const char* values[] = {conninfo.empty() ? nullptr : conninfo.c_str(), "UTF8", "outboxctl",
                                nullptr};
        connection_ = PQconnectdbParams(names, values, 1);
        if (PQstatus(connection_) != CONNECTION_OK)
            throw Refused(PQerrorMessage(connection_));
    }
    return connection_;
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
            "\nHINT:  The extension (pg_inbox, pg_outbox) may be missing in this database, or "
            "older than outboxctl. See outboxctl inbox install --help.";
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
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        throw refusal(result.native(), PQerrorMessage(connection()));
    return result;
}

void Session::run_script(const char* statements) {
    const Result result(PQexec(connection(), statements));
    const ExecStatusType status = PQresultStatus(result.native());
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        throw refusal(result.native(), PQerrorMessage(connection()));
}

static void print(std::string_view line) {
    std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
}

int Session::list(const std::string& columns, const std::string& rest,
                  const std::vector<Parameter>& parameters) {
    if (json) {
        const Result all =
            query("SELECT coalesce(json_agg(q), '[]'), count(*) FROM (SELECT * " + rest + ") AS q",
                  parameters);
        print(all.text(0, 0));
        return std::stoi(std::string(all.text(0, 1)));
    }
    const Result rows = query("SELECT " + columns + ' ' + rest, parameters);
    print(table_of(rows));
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
