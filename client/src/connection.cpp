#include "connection.hpp"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "core/libpq_error.hpp"
#include "core/libpq_session.hpp"
#include "core/text_values.hpp"

namespace inbox {

// At most this many statements are prepared per connection. A handler that writes values into its
// statements would otherwise fill the server's memory.
static constexpr std::size_t max_prepared = 200;

static std::string trimmed(std::string text) {
    while (!text.empty() && text.back() == '\n')
        text.pop_back();
    return text;
}

static void pass_on_notice(void* log, const PGresult* notice) {
    if (const Log& say = *static_cast<const Log*>(log))
        say(Level::debug, trimmed(PQresultErrorMessage(notice)));
}

outbox::LibpqConnection made_by_factory(PGconn* connection) {
    outbox::LibpqConnection made;
    made.connection = connection;
    if (connection == nullptr)
        made.failure = "the connection factory returned no connection";
    return made;
}

Connection::Connection(PGconn* connection, outbox::SessionKind kind, bool prepare,
                       const Flag& give_up, Log log)
    : Connection(made_by_factory(connection), unlimited, kind, prepare, give_up, std::move(log)) {}

Connection::Connection(outbox::LibpqConnection connection, std::uint64_t max_answer,
                       outbox::SessionKind kind, bool prepare, const Flag& give_up, Log log)
    : libpq_(std::move(connection)),
      max_answer_(max_answer),
      prepares_(prepare),
      give_up_(give_up),
      log_(std::move(log)) {
    if (!libpq_.failure.empty())
        lost(trimmed(libpq_.failure));
    if (PQstatus(libpq_.connection) != CONNECTION_OK)
        lost(trimmed(outbox::error_of(libpq_.connection)));
    if (max_answer_ != unlimited && !outbox::stand_between(libpq_.connection, *libpq_.socket))
        lost(std::strerror(errno));
    PQsetNoticeReceiver(libpq_.connection, pass_on_notice, &log_);
    begin_session(kind);
}

// The settings would be cancelled by the limit that they remove; SET is the quickest. All statements of a
// pipeline are one transaction, although servers before 17 warn that there is none. A limit for handlers
// stays.
void Connection::begin_session(outbox::SessionKind kind) {
    if (kind != outbox::SessionKind::handlers)
        send(Whose::own, std::string(outbox::take_time));
    run(Whose::own, "SELECT pg_catalog.set_config('client_encoding', 'UTF8', false), " +
                        outbox::set_session(libpq_.connection, kind,
                                            outbox::runs_elsewhere(libpq_.connection)));
}

// ------------------------------------------------------------------------------------------------
// Sending
// ------------------------------------------------------------------------------------------------

void Connection::enter_pipeline() {
    if (PQpipelineStatus(libpq_.connection) != PQ_PIPELINE_OFF)
        return;
    const bool entered =
        PQsetnonblocking(libpq_.connection, 1) == 0 && PQenterPipelineMode(libpq_.connection);
    if (!entered && PQstatus(libpq_.connection) == CONNECTION_OK)
        throw StatementError(Whose::handler, "55000", "the connection has a statement under way");
}

void Connection::send(Whose whose, const std::string& statement,
                      const std::vector<Parameter>& parameters, Format results) {
    const auto values = outbox::text_values(parameters);
    if (!values || outbox::has_nul(statement))
        throw StatementError(whose, std::string(outbox::nul_in_text_state),
                             {.message = std::string(outbox::nul_in_text),
                              .detail = values ? "It is in the text of a statement."
                                               : "It is in a parameter of a statement.",
                              .hint = "Pass bytes as inbox::bytes(), to a column of type bytea."});

    enter_pipeline();
    const auto count = static_cast<int>(values->size());
    const int format = results == Format::binary;
    // Statements without parameters, such as BEGIN and COMMIT, are not worth preparing.
    auto known = names_.find(statement);
    if (prepares_ && count > 0 && known == names_.end() && names_.size() < max_prepared)
        known = prepare(whose, statement);
    if (known != names_.end())
        sent(PQsendQueryPrepared(libpq_.connection, known->second.c_str(), count, values->data(),
                                 nullptr, nullptr, format),
             whose);
    else
        sent(PQsendQueryParams(libpq_.connection, statement.c_str(), count, nullptr, values->data(),
                               nullptr, nullptr, format),
             whose);
}

Connection::Names::iterator Connection::prepare(Whose whose, const std::string& statement) {
    std::string name = "inbox_" + std::to_string(++last_name_);
    sent(PQsendPrepare(libpq_.connection, name.c_str(), statement.c_str(), 0, nullptr), whose,
         statement);
    return names_.emplace(statement, std::move(name)).first;
}

void Connection::sent(int accepted, Whose whose, std::string prepares) {
    if (!accepted)
        lost(trimmed(outbox::error_of(libpq_.connection)));
    sent_.push_back({whose, std::move(prepares)});
}

// ------------------------------------------------------------------------------------------------
// Answers
// ------------------------------------------------------------------------------------------------

// The server ends the session, so the connection is as good as lost.
static bool server_leaves(const std::string& sqlstate) {
    return sqlstate == "57P01" || sqlstate == "57P02" || sqlstate == "57P03" ||
           sqlstate == "57P05" || sqlstate.starts_with("08");
}

static std::string field_of(const PGresult* result, int field) {
    const char* text = PQresultErrorField(result, field);
    return text ? text : "";
}

// A server may repeat the password that it was sent.
static Diagnostics diagnostics_of(PGconn* connection, const PGresult* result) {
    const auto field = [&](int code) {
        return outbox::without_passwords(connection, field_of(result, code));
    };
    Diagnostics found{.message = field(PG_DIAG_MESSAGE_PRIMARY),
                      .detail = field(PG_DIAG_MESSAGE_DETAIL),
                      .hint = field(PG_DIAG_MESSAGE_HINT),
                      .context = field(PG_DIAG_CONTEXT)};
    if (found.message.empty())
        found.message =
            outbox::without_passwords(connection, trimmed(PQresultErrorMessage(result)));
    return found;
}

std::string Diagnostics::text() const {
    std::string all = message;
    if (!detail.empty())
        all.append("\nDETAIL: ").append(detail);
    if (!hint.empty())
        all.append("\nHINT: ").append(hint);
    if (!context.empty())
        all.append("\nCONTEXT: ").append(context);
    return all;
}

static std::string sqlstate_of(const PGresult* result) {
    const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    return state ? state : "XX000";
}

struct ClearResult {
    void operator()(PGresult* result) const { PQclear(result); }
};
// Unlike a Result it is not shared, which would cost an allocation for each statement.
using ClearedResult = std::unique_ptr<PGresult, ClearResult>;

Result Connection::finish() {
    if (sent_.empty())
        return Result(nullptr);
    if (!PQpipelineSync(libpq_.connection))
        lost(trimmed(outbox::error_of(libpq_.connection)));

    max_received_ = libpq_.socket->received() + max_answer_;
    std::optional<StatementError> failure;
    ClearedResult last;
    for (;;) {
        PGresult* answer = next_result();
        if (answer == nullptr) {  // the end of the results of one statement
            if (sent_.empty())
                lost("the server sent an answer without a request");
            sent_.pop_front();
            continue;
        }
        ClearedResult result(answer);
        const ExecStatusType status = PQresultStatus(answer);
        if (status == PGRES_PIPELINE_SYNC)
            break;
        const Sent& statement = sent_.front();
        if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK ||
            status == PGRES_EMPTY_QUERY) {
            last = std::move(result);
            continue;
        }
        if (!statement.prepares.empty())
            names_.erase(statement.prepares);
        if (status == PGRES_PIPELINE_ABORTED)
            continue;
        if (status != PGRES_FATAL_ERROR)
            // A connection in this state cannot return to the pipeline.
            lost("COPY is for Transaction::native() only");
        std::string sqlstate = sqlstate_of(answer);
        if (server_leaves(sqlstate))
            lost(diagnostics_of(libpq_.connection, answer).text());
        if (!failure)
            failure.emplace(statement.whose, std::move(sqlstate),
                            diagnostics_of(libpq_.connection, answer));
    }
    if (failure)
        throw *failure;
    return Result(last.release());
}

PGresult* Connection::next_result() {
    if (max_answer_ == unlimited)
        await_trusted_result();
    else
        await_limited_result();
    PGresult* result = PQgetResult(libpq_.connection);
    if (PQstatus(libpq_.connection) == CONNECTION_BAD) {
        PQclear(result);
        lost(trimmed(outbox::error_of(libpq_.connection)));
    }
    return result;
}

static constexpr const char* stopped = "the consumer was stopped";

void Connection::await_limited_result() {
    const std::string failure =
        outbox::await_result(libpq_, max_received_, {.stop = give_up_.descriptor()});
    if (give_up_.raised())
        lost(stopped);
    if (!failure.empty())
        lost(failure + ": it has more than " + std::to_string(max_answer_) + " bytes");
}

void Connection::await_trusted_result() {
    PGconn* const connection = libpq_.connection;
    for (;;) {
        const int left = PQflush(connection);
        if (left < 0 || (left == 0 && PQisBusy(connection) == 0))
            return;
        const short events = left > 0 ? POLLIN | POLLOUT : POLLIN;
        if (!outbox::wait_for_libpq(PQsocket(connection), events, {.stop = give_up_.descriptor()}))
            lost(stopped);
        if (PQconsumeInput(connection) == 0)
            return;
    }
}

void Connection::lost(const std::string& why) {
    libpq_.close();
    throw ConnectionLost(why);
}

// ------------------------------------------------------------------------------------------------
// States
// ------------------------------------------------------------------------------------------------

PGconn* Connection::plain() {
    finish();
    // Handlers expect a blocking connection outside pipeline mode.
    if (!PQexitPipelineMode(libpq_.connection) || PQsetnonblocking(libpq_.connection, 0) != 0)
        lost(trimmed(outbox::error_of(libpq_.connection)));
    return libpq_.connection;
}

void Connection::check_plain() const {
    if (PQstatus(libpq_.connection) != CONNECTION_OK)
        throw ConnectionLost(trimmed(outbox::error_of(libpq_.connection)));
    // In pipeline mode the state of the transaction is not known before the next finish().
    if (PQpipelineStatus(libpq_.connection) == PQ_PIPELINE_OFF && !in_transaction())
        throw StatementError(Whose::handler, "25000",
                             "the handler left the connection without a usable transaction");
}

void Connection::discard() {
    try {
        finish();
    } catch (const StatementError&) {
        // Later failures follow from this one or an earlier one.
    }
}

void Connection::roll_back() {
    discard();
    try {
        run(Whose::own, "ROLLBACK");
        restore_session();
        finish();
    } catch (const StatementError& error) {
        lost(error.what());  // a handler left it in an unusable state
    }
}

void Connection::expect_changes() {
    if (!settings_) {
        const Result found =
            run(Whose::own,
                "SELECT s.name, s.setting FROM pg_catalog.pg_settings AS s "
                "WHERE s.source = 'session' AND s.setting IS DISTINCT FROM s.reset_val "
                "UNION ALL SELECT 'role', pg_catalog.current_setting('role') ORDER BY 1");
        settings_.emplace();
        for (int row = 0; row < found.rows(); row++)
            for (const int column : {0, 1})
                settings_->emplace_back(found.text(row, column));
    }
    expects_changes_ = true;
}

// DISCARD ALL would do it, were it allowed in a transaction, and were there no settings of the
// connection factory. A failure is the handler's, which has left what cannot be removed.
void Connection::restore_session() {
    if (!std::exchange(expects_changes_, false))
        return;
    for (const char* statement :
         {"CLOSE ALL", "RESET SESSION AUTHORIZATION", "RESET ALL", "UNLISTEN *",
          "SELECT pg_catalog.pg_advisory_unlock_all()", "DISCARD TEMP", "DISCARD SEQUENCES"})
        send(Whose::handler, statement);
    std::string settings;
    for (std::size_t i = 1; i <= settings_->size(); i += 2)
        settings.append(settings.empty() ? "SELECT " : ", ")
            .append("pg_catalog.set_config($" + std::to_string(i) + ", $" + std::to_string(i + 1) +
                    ", false)");
    if (!settings.empty())
        send(Whose::handler, settings, *settings_);
    names_.clear();
    send(Whose::handler, "DEALLOCATE ALL");
}

void Connection::forget_statements() {
    names_.clear();
    run(Whose::own, "DEALLOCATE ALL");
}

}  // namespace inbox
