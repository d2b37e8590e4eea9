// The database that commands work on, and the output of query results.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/libpq_limits.hpp"
#include "inbox/transaction.hpp"

namespace outboxctl {

using inbox::Parameter;
using inbox::Result;

// Returns an array of PostgreSQL as text.
std::string array_of(const std::vector<std::string>& values);

// Appends an argument by name to a function call. Leaves it out if there is no value, so that the
// default of the function applies.
void add_argument(std::string& call, std::vector<Parameter>& parameters, const std::string& name,
                  const Parameter& value, const std::string& cast = "");

// The database refused the command. The text has the server's detail and hint.
struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
    std::string sqlstate{};  // empty if it was not the database
};

// SQLSTATE
inline constexpr const char* insufficient_privilege = "42501";

// Something is wrong that the command has found and printed.
struct Failing : std::exception {};

class Session {
  public:
    bool json = false;
    bool one_of_several = false;  // databases: rows then have a column `database`
    // The work goes on unattended, so it is never done as a powerful role.
    bool unattended = false;
    // The work calls nothing that is in the database, and so may be done as a powerful role anywhere.
    bool calls_nothing = false;

    // The databases that the command works on, one after the other: next() goes to the next of them,
    // and returns false after the last. A command that works on all at once takes them.
    void set_databases(std::vector<std::string> databases);
    bool next();
    std::vector<std::string> take_databases();

    Session() = default;
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // The database of what follows: its name or a connection string; missing parts come from the
    // environment. Ends the connection to the one before. `name`, if any, takes the place of the name
    // in the connection string.
    void use(const std::string& database, const std::string& name = "");
    const std::string& database() const { return conninfo_; }
    // Connects when it is called for the first time. Refuses a powerful role where it could run code of
    // others: see owners_question.hpp.
    PGconn* connection();
    // For a function that waits by itself. The server's answers to it have no limit.
    PGconn* unlimited_connection();
    // Whether pg_outbox or pg_inbox is there, by the name of its schema.
    bool has(const std::string& schema);

    // All statements have a safe search_path. Outside of a transaction the statement gets one of its
    // own: a setting of the session would stay in a pooler's connection.
    Result query(const std::string& statement, const std::vector<Parameter>& parameters = {});

    // Returns a table that the user has named, in a form that query() can take as a regclass. A name
    // without a schema is looked up as in psql, by the user's search_path.
    std::string table(const std::string& name);

    // Runs several statements.
    void run_script(const char* statements);

    // Runs work() in a transaction. A dry run does it, says what it has done, and undoes it.
    void run(bool dry, const std::function<void()>& work);

    // `rest` is FROM and so on. Prints these columns as a table, or as JSON an array of objects
    // with all columns. Returns the number of rows that are `counted`.
    int list(const std::string& columns, const std::string& rest,
             const std::vector<Parameter>& parameters = {}, const std::string& counted = "true");
    // Prints each row as a list of its columns, long texts whole, or as JSON. Returns the number of
    // rows.
    int show(const std::string& rest, const std::vector<Parameter>& parameters);
    // Runs a query of one row. Prints it as a JSON object, or else the text that `sentence` makes
    // of it.
    void report(const std::string& query, const std::vector<Parameter>& parameters,
                const std::function<std::string(const Result&)>& sentence);

  private:
    void ask_for_owners();
    void end();
    void refuse_missing(const std::string& statement) const;
    Result execute(const std::string& statement, const std::vector<Parameter>& parameters);
    Result answer(int was_sent);
    void roll_back();

    std::vector<std::string> databases_;
    std::size_t used_ = 0;  // of them
    std::string conninfo_, name_;
    outbox::LibpqConnection libpq_;
    int warnings_left_ = 20;  // to be shown
    bool is_powerful_ = false, has_outbox_ = false, has_inbox_ = false;
};

}  // namespace outboxctl
