// A connection in pipeline mode: statements are sent without waiting, and their answers are read
// together.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <libpq-fe.h>

#include "core/libpq_session.hpp"
#include "flag.hpp"
#include "inbox/error.hpp"
#include "inbox/source.hpp"
#include "inbox/transaction.hpp"

namespace inbox {

enum class Whose { own, handler };

// The parts of an error message of the server; empty if there is none.
struct Diagnostics {
    std::string message{}, detail{}, hint{}, context{};

    // All of them, one below the other.
    std::string text() const;
};

// A statement that failed: one of the library's own, whose failure says nothing about any event, or
// one of the handler's.
class StatementError : public DatabaseError {
  public:
    StatementError(Whose whose, std::string sqlstate, Diagnostics diagnostics)
        : DatabaseError(std::move(sqlstate), diagnostics.text()),
          whose_(whose),
          diagnostics_(std::move(diagnostics)) {}
    StatementError(Whose whose, std::string sqlstate, const std::string& message)
        : StatementError(whose, std::move(sqlstate), Diagnostics{.message = message}) {}
    Whose whose() const noexcept { return whose_; }
    const Diagnostics& diagnostics() const noexcept { return diagnostics_; }

  private:
    Whose whose_;
    Diagnostics diagnostics_;
};

enum class Format { text, binary };

class Connection {
  public:
    // Takes over the connection of a ConnectionFactory. Throws ConnectionLost if it has failed.
    // When `give_up` is raised, functions that wait for the server throw ConnectionLost.
    Connection(PGconn* connection, outbox::SessionKind kind, bool prepare, const Flag& give_up,
               Log log);
    Connection(const Connection&) = delete;  // libpq refers to log_
    Connection& operator=(const Connection&) = delete;

    // Sends a statement. Its result is part of the next finish().
    void send(Whose whose, const std::string& statement,
              const std::vector<Parameter>& parameters = {}, Format results = Format::text);
    // Waits for the answers to all statements that were sent. Returns the last result. Throws the
    // first failure; no statement after it was executed. Outside a transaction, all statements
    // since the last finish() form one.
    Result finish();
    // Calls send() and finish(), for callers that need each result.
    Result run(Whose whose, const std::string& statement,
               const std::vector<Parameter>& parameters = {}, Format results = Format::text) {
        send(whose, statement, parameters, results);
        return finish();
    }

    // Ends pipeline mode. Nothing is under way then.
    PGconn* plain();
    // Throws unless the handler that used plain() left a usable transaction.
    void check_plain() const;
    // Like finish(), but ignores failures.
    void discard();
    // Ends the transaction in whatever state it is. Throws ConnectionLost if that is impossible.
    void roll_back();
    bool in_transaction() const {
        return PQtransactionStatus(connection_.get()) == PQTRANS_INTRANS;
    }
    bool is_idle() const { return PQtransactionStatus(connection_.get()) == PQTRANS_IDLE; }
    // Remembers the settings of the session, before a handler changes it.
    void expect_changes();
    // Makes the session as it was, if changes were expected. The answers are part of the next
    // finish().
    void restore_session();
    // Prepares all statements again: changed tables and poolers can make prepared ones unusable.
    void forget_statements();

  private:
    using Names = std::unordered_map<std::string, std::string>;
    struct Sent {
        Whose whose;
        std::string prepares;  // the statement, or empty if it was executed and not prepared
    };

    void begin_session(outbox::SessionKind kind);
    void enter_pipeline();
    Names::iterator prepare(Whose whose, const std::string& statement);
    void sent(int accepted, Whose whose, std::string prepares = {});
    PGresult* next_result();
    void wait_for_server(short events);
    [[noreturn]] void lost(const std::string& why);

    std::unique_ptr<PGconn, void (*)(PGconn*)> connection_;
    bool prepares_;
    const Flag& give_up_;
    Log log_;
    std::deque<Sent> sent_;
    Names names_;  // names of prepared statements
    // Names and values of settings, in turn, that are not those of a new session.
    std::optional<std::vector<Parameter>> settings_;
    bool expects_changes_ = false;
    unsigned last_name_ = 0;
};

}  // namespace inbox
