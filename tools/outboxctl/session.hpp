// The database that commands work on, and how they tell what it answered.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "inbox/transaction.hpp"

namespace outboxctl {

using inbox::Parameter;
using inbox::Result;

// The database did not do what was asked. The text has the server's detail and hint.
struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Session {
  public:
    std::string conninfo;  // or the name of a database; what it does not say the environment does
    bool json = false;

    Session() = default;
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Connects when it is called for the first time.
    PGconn* connection();
    Result query(const std::string& statement, const std::vector<Parameter>& parameters = {});

    // `rest`: FROM and so on. As a table these columns, as JSON an array with all there are.
    // Returns how many rows there were.
    int list(const std::string& columns, const std::string& rest,
             const std::vector<Parameter>& parameters = {});
    // A query of one row. As JSON an object; else what `sentence` makes of it.
    void report(const std::string& query, const std::vector<Parameter>& parameters,
                const std::function<std::string(const Result&)>& sentence);

  private:
    PGconn* connection_ = nullptr;
};

}  // namespace outboxctl
