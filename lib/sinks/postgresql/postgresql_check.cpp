// Checks whether the inbox of another database can be used. It connects and logs in as the sink
// does, then looks up the objects that the sink would use. Writes nothing there.
#include <string_view>

#include "core/check.hpp"
#include "core/late.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/postgresql/connection.hpp"
#include "sinks/postgresql/receive_statement.hpp"

namespace outbox {

namespace {

constexpr int columns_of_answer = 3;
// If several functions have this name, the sink means the one that it could prepare.
constexpr const char* question =
    "SELECT pg_catalog.bool_or(pg_catalog.has_function_privilege(p.oid, 'EXECUTE')), "
    "       pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool, "
    "       pg_catalog.pg_backend_pid() "
    "  FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace "
    " WHERE n.nspname = 'inbox' AND p.proname = 'receive'";

class PostgresqlCheck final : public Check {
  public:
    explicit PostgresqlCheck(const CheckContext& context)
        : options_(postgresql_options(context.destination)),
          clock_(context.clock),
          connection_(options_, context.clock) {}

    int descriptor() const noexcept override { return connection_.descriptor(); }

    Micros deadline() const noexcept override {
        switch (state_) {
            case State::begin:
                return 0;
            case State::connecting:
                return connection_.deadline();
            default:
                return deadline_;
        }
    }

    bool step(Micros now, std::vector<Finding>& findings) override {
        if (state_ == State::begin) {
            state_ = State::connecting;
            connection_.start();
        }
        if (state_ == State::connecting)
            connect(now, findings);
        if (state_ == State::preparing || state_ == State::asking)
            look(now, findings);
        return state_ == State::done;
    }

  private:
    enum class State { begin, connecting, preparing, asking, done };
    using Stage = PostgresqlConnection::Stage;

    bool failed() const { return !connection_.failure().empty(); }

    void connect(Micros now, std::vector<Finding>& findings) {
        connection_.step(now);
        if (!failed() && connection_.stage() != Stage::open)
            return;
        if (connection_.get() != nullptr)
            report_steps(findings);
        if (failed()) {
            findings.push_back({subject_of(connection_.stage()), false, connection_.failure()});
            state_ = State::done;
            return;
        }
        PGconn* pg = connection_.get();
        findings.push_back(
            {"login", true,
             "as role \"" + std::string(PQuser(pg)) + "\", to database \"" + PQdb(pg) + "\""});
        state_ = State::preparing;
        sent(PQsendPrepare(pg, receive_name, receive_statement, 0, nullptr));
    }

    // Reports the stages that succeeded.
    void report_steps(std::vector<Finding>& findings) const {
        PGconn* pg = connection_.get();
        const std::string host = PQhost(pg);
        const std::string address = PQhostaddr(pg);
        findings.push_back({"address", true, address.empty() ? host : host + " is " + address});
        if (connection_.stage() > Stage::connection)
            findings.push_back({"connection", true, std::string("port ") + PQport(pg)});
        if (connection_.stage() > Stage::tls && PQsslInUse(pg))
            findings.push_back({"tls", true, PQsslAttribute(pg, "protocol")});
    }

    static const char* subject_of(Stage stage) {
        switch (stage) {
            case Stage::closed:
            case Stage::address:
                return "address";
            case Stage::connection:
                return "connection";
            case Stage::tls:
                return "tls";
            case Stage::login:
            case Stage::open:
                break;
        }
        return "login";
    }

    void sent(int worked) {
        deadline_ = clock_.now() + options_.limits.request;
        if (worked)
            connection_.flush();
        else
            connection_.take_error();
    }

    // Takes the answer to the last question if it has arrived, and asks the next one.
    void look(Micros now, std::vector<Finding>& findings) {
        bool answered = false;
        if (!failed() && connection_.consume())
            while (!answered && !PQisBusy(connection_.get())) {
                PGresult* result = PQgetResult(connection_.get());
                answered = result == nullptr;
                if (!answered)
                    take(result, findings);
                PQclear(result);
            }
        if (!failed() && !answered && now >= deadline_)
            connection_.fail(no_answer_within(options_.limits.request));
        if (failed()) {
            findings.push_back({"inbox", false, connection_.failure()});
            state_ = State::done;
        } else if (answered && state_ == State::preparing) {
            connection_.answered();
            state_ = State::asking;
            sent(PQsendQuery(connection_.get(), question));
        } else if (answered) {
            state_ = State::done;
        }
    }

    void take(const PGresult* result, std::vector<Finding>& findings) {
        PGconn* pg = connection_.get();
        const ExecStatusType status = PQresultStatus(result);
        if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
            connection_.fail(explain_missing_inbox(pg, result));
        if (status != PGRES_TUPLES_OK || PQntuples(result) != 1)
            return;
        if (PQnfields(result) != columns_of_answer) {  // there is no value behind the last one
            connection_.fail("the answer lacks columns");
            return;
        }
        const auto is = [&](int column) {
            return std::string_view(PQgetvalue(result, 0, column)) == "t";
        };
        if (!is(0))
            findings.push_back({"inbox", false,
                                std::string("permission denied for function inbox.receive (run "
                                            "SELECT inbox.grant_send('") +
                                    PQuser(pg) + "') in the destination)"});
        else if (is(1))
            findings.push_back({"inbox", false, "the database is read-only, as a standby is"});
        else
            findings.push_back(
                {"inbox", true,
                 is_through_pooler(pg, PQgetvalue(result, 0, 2))
                     ? "it exists, and may be sent to; through a pooler, which must keep the "
                       "session (PgBouncer: pool_mode = session)"
                     : "it exists, and may be sent to"});
    }

    // A pooler answers for processes that it has not chosen yet.
    static bool is_through_pooler(const PGconn* pg, std::string_view process) {
        return process != std::to_string(PQbackendPID(pg));
    }

    const PostgresqlOptions options_;
    const Clock& clock_;
    PostgresqlConnection connection_;
    State state_ = State::begin;
    Micros deadline_ = never;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        outbox::prepare_process_for_libpq();
        return new outbox::PostgresqlCheck(context);
    });
}
