// A connection in pipeline mode: statements are sent without waiting, and their answers are read
// together.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <libpq-fe.h>

#include "core/libpq_limits.hpp"
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

// Takes the connection that a ConnectionFactory returned.
outbox::LibpqConnection made_by_factory(PGconn* connection);

class Connection {
  public:
    // Takes over the connection of a ConnectionFactory. Throws ConnectionLost if it has failed.
    // When `give_up` is raised, functions that wait for the server throw ConnectionLost.
    //
    // The server is trusted: it is the database of the consumer, whose handlers use libpq as they
    // like. So what it sends is not counted, and an answer may take any amount of memory.
    Connection(PGconn* connection, outbox::SessionKind kind, bool prepare, const Flag& give_up,
               Log log);
    // For the server of somebody else: throws ConnectionLost before an answer takes more bytes, and
    // drops notices. plain() is for trusted servers only.
    Connection(outbox::LibpqConnection connection, std::uint64_t max_answer,
               outbox::SessionKind kind, bool prepare, const Flag& give_up, Log log = {});
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
        return PQtransactionStatus(libpq_.connection) == PQTRANS_INTRANS;
    }
    bool is_idle() const { return PQtransactionStatus(libpq_.connection) == PQTRANS_IDLE; }
    // libpq keeps some of what a server sends, such as parameters with new names, until the
    // connection ends. So another one is to be made after as many bytes as an answer may have.
    bool is_worn_out() const {
        return max_answer_ != unlimited && libpq_.socket->received() > max_answer_;
    }
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
    void await_limited_result();
    void await_trusted_result();
    [[noreturn]] void lost(const std::string& why);

    static constexpr std::uint64_t unlimited = 0;

    outbox::LibpqConnection libpq_;
    std::uint64_t max_answer_ = unlimited;
    std::uint64_t max_received_ = 0;  // at the end of the answer that is being read
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
