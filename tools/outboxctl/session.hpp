// The database that commands work on, and the output of query results.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "inbox/transaction.hpp"

namespace outboxctl {

using inbox::Parameter;
using inbox::Result;

// The database refused the command. The text has the server's detail and hint.
struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
    std::string sqlstate{};  // empty if it was not the database
};

class Session {
  public:
    std::string conninfo;  // or the name of a database; missing parts come from the environment
    bool json = false;

    Session() = default;
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Connects when it is called for the first time.
    PGconn* connection();
    Result query(const std::string& statement, const std::vector<Parameter>& parameters = {});

    // Runs several statements.
    void run_script(const char* statements);

    // `rest` is FROM and so on. Prints these columns as a table, or as JSON an array of objects
    // with all columns. Returns the number of rows.
    int list(const std::string& columns, const std::string& rest,
             const std::vector<Parameter>& parameters = {});
    // Runs a query of one row. Prints it as a JSON object, or else the text that `sentence` makes
    // of it.
    void report(const std::string& query, const std::vector<Parameter>& parameters,
                const std::function<std::string(const Result&)>& sentence);

  private:
    PGconn* connection_ = nullptr;
};

}  // namespace outboxctl
