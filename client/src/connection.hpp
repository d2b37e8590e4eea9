// A connection in pipeline mode: statements are sent without waiting, and their answers read
// together.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <libpq-fe.h>

#include "flag.hpp"
#include "inbox/error.hpp"
#include "inbox/source.hpp"
#include "inbox/transaction.hpp"

namespace inbox {

enum class Whose { own, handler };

// Which statement failed: one of the library's own, whose failure says nothing about any event, or
// one of the handler's.
class StatementError : public DatabaseError {
  public:
    StatementError(Whose whose, std::string sqlstate, const std::string& message)
        : DatabaseError(std::move(sqlstate), message), whose_(whose) {}
    Whose whose() const noexcept { return whose_; }

  private:
    Whose whose_;
};

enum class Format { text, binary };

class Connection {
  public:
    // Takes over what a ConnectionFactory has made. Throws ConnectionLost if that is no connection.
    // Whoever waits for the server gets ConnectionLost when `give_up` is raised.
    Connection(PGconn* connection, bool prepare, const Flag& give_up, Log log);
    Connection(const Connection&) = delete;  // libpq knows where log_ is
    Connection& operator=(const Connection&) = delete;

    // Sends a statement; what it returns is in the next finish().
    void send(Whose whose, const std::string& statement,
              const std::vector<Parameter>& parameters = {}, Format results = Format::text);
    // Waits for the answers to all that was sent. Returns the last; throws the first failure,
    // behind which nothing was executed. Outside a transaction all that was sent is one.
    Result finish();
    // The same, and nothing is sent behind a failure: for those who look at each result.
    Result run(Whose whose, const std::string& statement,
               const std::vector<Parameter>& parameters = {}, Format results = Format::text) {
        send(whose, statement, parameters, results);
        return finish();
    }

    // Not in pipeline mode, with nothing under way.
    PGconn* plain();
    // Throws unless a handler that was given plain() has left a transaction that can go on.
    void check_plain() const;
    // Like finish(), but does not mind failures.
    void discard();
    // Ends the transaction, whatever state it is in. Throws ConnectionLost if that is impossible.
    void roll_back();
    bool in_transaction() const {
        return PQtransactionStatus(connection_.get()) == PQTRANS_INTRANS;
    }
    bool is_idle() const { return PQtransactionStatus(connection_.get()) == PQTRANS_IDLE; }
    // Prepares everything anew: plans and poolers can make prepared statements useless.
    void forget_statements();

  private:
    struct Sent {
        Whose whose;
        std::string prepares;  // the statement; empty: it was executed
    };

    void enter_pipeline();
    void prepare(Whose whose, const std::string& statement);
    void sent(int accepted, Whose whose, std::string prepares = {});
    PGresult* next_result();
    void wait_for_server(short events);
    [[noreturn]] void lost(const std::string& why);

    std::unique_ptr<PGconn, void (*)(PGconn*)> connection_;
    bool prepares_;
    const Flag& give_up_;
    Log log_;
    std::deque<Sent> sent_;
    std::unordered_map<std::string, std::string> names_;  // of prepared statements
    unsigned last_name_ = 0;
};

}  // namespace inbox
