#include "session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "core/libpq_error.hpp"
#include "core/text.hpp"
#include "core/text_values.hpp"
#include "owners_question.hpp"
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
                  const Parameter& value, const std::string& cast) {
    if (!value)
        return;
    parameters.push_back(value);
    call += ", " + name + " => $" + std::to_string(parameters.size()) + cast;
}

// Nothing that outboxctl asks for is longer.
static constexpr std::uint64_t max_answer = 128 * 1024 * 1024;

// Only of so many warnings: they come from the server, in any number.
static void print_warning(void* left, const PGresult* notice) {
    int& warnings_left = *static_cast<int*>(left);
    const char* severity = PQresultErrorField(notice, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char* message = PQresultErrorField(notice, PG_DIAG_MESSAGE_PRIMARY);
    if (message == nullptr || severity == nullptr || std::string_view(severity) != "WARNING" ||
        warnings_left-- <= 0)
        return;
    std::fprintf(stderr, "WARNING:  %s\n", outbox::printable(message).c_str());
}

static std::string begin() {
    return "BEGIN; SET LOCAL " + std::string(outbox::safe_search_path);
}

Session::~Session() {
    end();
}

void Session::end() {
    libpq_.close();
    is_powerful_ = has_outbox_ = has_inbox_ = false;
}

void Session::set_databases(std::vector<std::string> databases) {
    databases_ = std::move(databases);
    one_of_several = databases_.size() > 1;
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
    end();
    conninfo_ = database;
    name_ = name;
}

// Text of a server on a terminal: without control characters, and with no line that looks like one of
// ours.
static std::string shown(std::string_view text) {
    static constexpr std::size_t most_lines = 20;
    std::string all;
    for (std::size_t lines = 0; !text.empty() && lines < most_lines; lines++) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = outbox::trim(text.substr(0, end));
        if (!line.empty())
            all += (all.empty() ? "" : "\n\t") + outbox::printable(line);
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return all;
}

PGconn* Session::connection() {
    if (libpq_.connection == nullptr) {
        // The last value of a name counts. Only the first one may be a connection string, also if
        // it is empty: names of databases are chosen by others.
        outbox::LibpqParameters parameters{{"dbname", conninfo_}};
        if (!name_.empty())
            parameters.emplace_back("dbname", name_);
        parameters.emplace_back("client_encoding", "UTF8");
        parameters.emplace_back("fallback_application_name", "outboxctl");
        libpq_ = outbox::connect_libpq(std::move(parameters), true,
                                       outbox::SessionRule{outbox::SessionKind::commands});
        if (!libpq_.failure.empty()) {
            end();
            throw Refused(shown(libpq_.failure));
        }
        PQsetNoticeReceiver(libpq_.connection, print_warning, &warnings_left_);
        try {
            ask_for_owners();
        } catch (const Refused&) {
            end();  // so that nothing else uses it
            throw;
        }
    }
    return libpq_.connection;
}

PGconn* Session::unlimited_connection() {
    PQsetnonblocking(connection(), 0);
    if (libpq_.socket->descriptor() >= 0 && !libpq_.socket->remove(PQsocket(libpq_.connection)))
        throw Refused(std::string("could not take the connection: ") + std::strerror(errno));
    return libpq_.connection;
}

static Refused is_too_powerful(PGconn* connection, std::string_view power,
                               const std::string& detail, const std::string& hint) {
    return Refused("ERROR:  role \"" + std::string(PQuser(connection)) + "\" " + shown(power) +
                   detail + "\nHINT:  " + hint);
}

// The answer comes from pg_catalog alone.
void Session::ask_for_owners() {
    const Result answer = query(owners_question());
    is_powerful_ = !answer.is_null(0, 0);
    has_outbox_ = answer.text(0, 2) == "t";
    has_inbox_ = answer.text(0, 3) == "t";
    if (is_powerful_ && unattended)
        throw is_too_powerful(libpq_.connection, answer.text(0, 0),
                              ", and outboxctl serve never works with such rights",
                              "CREATE ROLE outbox_monitor LOGIN; in each database SELECT "
                              "outbox.grant_monitor('outbox_monitor'), "
                              "inbox.grant_monitor('outbox_monitor'); and connect as this role.");
    if (is_powerful_ && !answer.is_null(0, 1) && !calls_nothing)
        throw is_too_powerful(
            libpq_.connection, answer.text(0, 0),
            std::string(", and could run code of others in database \"") + PQdb(libpq_.connection) +
                "\"\nDETAIL:  " + shown(answer.text(0, 1)) + '.',
            "Connect as a role with no more rights than it needs, such as the owner, or: "
            "CREATE ROLE outbox_operator LOGIN; SELECT outbox.grant_monitor('outbox_operator'), "
            "outbox.grant_operate('outbox_operator'); and the same of inbox.");
}

bool Session::has(const std::string& schema) {
    connection();
    return schema == "outbox" ? has_outbox_ : has_inbox_;
}

// Throws if the statement needs what the database did not have when it was asked.
void Session::refuse_missing(const std::string& statement) const {
    for (const auto& [schema, is_there] :
         {std::pair("outbox", has_outbox_), {"inbox", has_inbox_}}) {
        const std::string name = schema, extension = "pg_" + name;
        if (is_there || (statement.find(name + '.') == std::string::npos &&
                         statement.find(name + "_internal.") == std::string::npos))
            continue;
        throw Refused("ERROR:  " + extension + " is not in database \"" + PQdb(libpq_.connection) +
                      "\"\nHINT:  Is it the right database? Otherwise use CREATE EXTENSION " +
                      extension +
                      (name == "inbox" ? ", or outboxctl inbox install."
                                       : ", or outboxctl install --edition sql."));
    }
}

// A server may repeat the password that it was sent.
static Refused refusal(PGconn* connection, const PGresult* result) {
    const auto field = [&](int code) {
        const char* text = PQresultErrorField(result, code);
        return shown(outbox::without_passwords(connection, text != nullptr ? text : ""));
    };
    const std::string primary = field(PG_DIAG_MESSAGE_PRIMARY), state = field(PG_DIAG_SQLSTATE);
    if (primary.empty())
        return Refused(shown(outbox::error_of(connection)));
    std::string text = "ERROR:  " + primary;
    if (!field(PG_DIAG_MESSAGE_DETAIL).empty())
        text += "\nDETAIL:  " + field(PG_DIAG_MESSAGE_DETAIL);
    if (state == "3F000" || state == "42P01" || state == "42883" ||
        state == "42703")  // no schema, view, function, column
        text +=
            "\nHINT:  The extension in this database may be older than outboxctl: see outboxctl "
            "doctor.";
    else if (!field(PG_DIAG_MESSAGE_HINT).empty())
        text += "\nHINT:  " + field(PG_DIAG_MESSAGE_HINT);
    Refused refused(text);
    refused.sqlstate = state;
    return refused;
}

Result Session::execute(const std::string& statement, const std::vector<Parameter>& parameters) {
    const auto values = outbox::text_values(parameters);
    if (!values || outbox::has_nul(statement))
        throw Refused("ERROR:  " + std::string(outbox::nul_in_text));
    return answer(PQsendQueryParams(libpq_.connection, statement.c_str(),
                                    static_cast<int>(values->size()), nullptr, values->data(),
                                    nullptr, nullptr, 0));
}

// Ends the connection if the server sends without end: it cannot be used any more.
Result Session::answer(int was_sent) {
    std::string failure;
    Result result(was_sent == 1 ? outbox::last_result(libpq_, {.bytes = max_answer}, failure)
                                : nullptr);
    if (!failure.empty()) {
        end();
        throw Refused(failure);
    }
    const ExecStatusType status = PQresultStatus(result.native());
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        throw refusal(libpq_.connection, result.native());
    return result;
}

void Session::roll_back() {
    try {
        answer(PQsendQuery(libpq_.connection, "ROLLBACK"));
    } catch (const Refused&) {  // the first error says more
    }
}

Result Session::query(const std::string& statement, const std::vector<Parameter>& parameters) {
    const bool alone = PQtransactionStatus(connection()) == PQTRANS_IDLE;
    if (is_powerful_)
        refuse_missing(statement);
    try {
        if (alone)
            run_script(begin().c_str());
        Result result = execute(statement, parameters);
        if (alone)
            run_script("COMMIT");
        return result;
    } catch (const Refused&) {
        if (alone && libpq_.connection != nullptr)
            roll_back();
        if (libpq_.connection != nullptr)
            refuse_missing(statement);
        throw;
    }
}

// Runs no code of others, although their schemas may be in the path: all names here are qualified, and
// looking up the name of a table calls nothing.
std::string Session::table(const std::string& name) {
    connection();
    const Result found = execute("SELECT pg_catalog.to_regclass($1)::pg_catalog.oid", {name});
    return found.is_null(0, 0) ? name : std::string(found.text(0, 0));
}

void Session::run_script(const char* statements) {
    answer(PQsendQuery(connection(), statements));
}

void Session::run(bool dry, const std::function<void()>& work) {
    run_script(begin().c_str());
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
