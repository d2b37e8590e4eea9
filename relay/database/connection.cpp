#include "relay/database/connection.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/libpq_error.hpp"
#include "core/text.hpp"

namespace outbox::relay {

static constexpr Micros shortest_pause = milliseconds(100);
static constexpr Micros max_pause = seconds(5);

namespace {

class LibpqRows final : public sql::RowSource {
  public:
    explicit LibpqRows(PGresult* result) : result_(result) {}
    LibpqRows(const LibpqRows&) = delete;
    LibpqRows& operator=(const LibpqRows&) = delete;
    ~LibpqRows() override { PQclear(result_); }

    int size() const noexcept override { return PQntuples(result_); }
    int column(const char* name) const noexcept override { return PQfnumber(result_, name); }
    Oid type_of(int column) const noexcept override { return PQftype(result_, column); }
    bool is_null(int row, int column) const noexcept override {
        return PQgetisnull(result_, row, column) == 1;
    }
    std::string_view bytes(int row, int column) const noexcept override {
        return {PQgetvalue(result_, row, column),
                static_cast<std::size_t>(PQgetlength(result_, row, column))};
    }
    std::size_t memory() const noexcept override { return PQresultMemorySize(result_); }

  private:
    PGresult* result_;
};

}  // namespace

Connection::Connection(Owner& owner, Poller& poller, const Clock& clock, ConnectionCounts& counts,
                       const ConnectionParameters& parameters, std::uint64_t seed)
    : owner_(owner),
      poller_(poller),
      clock_(clock),
      counts_(counts),
      parameters_(parameters),
      pauses_(shortest_pause, max_pause, seed) {}

Connection::~Connection() {
    close();
}

void Connection::open() {
    if (state_ != State::closed || connect_at_ != never)
        return;
    connect_at_ = failure_.empty() ? clock_.now() : clock_.now() + pauses_.next();
}

void Connection::close() noexcept {
    statement_.reset();
    release();
    connector_.reset();
    connect_at_ = never;
}

// A thread that still tries to connect is kept, so that there is never more than one.
void Connection::release() noexcept {
    unwatch();
    libpq_.close();
    state_ = State::closed;
    send_failure_.clear();
    deadline_ = never;
}

void Connection::fail(std::string why) {
    const bool was_open = is_open();
    failure_ = std::move(why);
    counts_.disconnects += was_open;
    release();
    if (statement_) {
        const auto done = std::move(statement_->done);
        statement_.reset();
        answer_ = {};
        done({.error = failure_});
    }
    owner_.connection_lost(*this);
}

void Connection::watch(int descriptor, std::uint32_t events) {
    poller_.watch(descriptor, events, *this);
    watched_ = descriptor;
    watched_events_ = events;
}

void Connection::rewatch(std::uint32_t events) noexcept {
    if (events != std::exchange(watched_events_, events))
        poller_.rewatch(watched_, events);
}

void Connection::unwatch() noexcept {
    if (watched_ >= 0)
        poller_.forget(std::exchange(watched_, -1));
}

// -------------------------------------------------------------------------------------------------
// Time
// -------------------------------------------------------------------------------------------------

Micros Connection::deadline() const noexcept {
    return std::min(deadline_, connect_at_);
}

void Connection::step(Micros now) {
    if (now >= connect_at_)
        connect();
    // The answer may be there, if the process was stopped for a while.
    if (now >= deadline_ && state_ == State::busy && send_failure_.empty())
        receive();
    if (now < deadline_)
        return;
    if (!send_failure_.empty())
        fail(send_failure_);
    else
        fail(state_ == State::connecting ? "could not connect in time" : "no answer in time");
}

// -------------------------------------------------------------------------------------------------
// Connecting
// -------------------------------------------------------------------------------------------------

void Connection::connect() {
    connect_at_ = never;
    if (connector_ == nullptr)
        connector_ = std::make_unique<Connector>(parameters_);
    state_ = State::connecting;
    deadline_ = clock_.now() + connect_time_limit;
    watch(connector_->descriptor(), EPOLLIN);
}

void Connection::take_connection() {
    if (!connector_->has_ended())
        return;
    unwatch();
    libpq_ = connector_->take();
    connector_.reset();
    if (!libpq_.failure.empty()) {
        fail(printable(libpq_.failure));
        return;
    }
    settings_ = "SELECT " + set_session(libpq_.connection, SessionKind::relay, "true");
    watch(libpq_.socket->descriptor(), EPOLLIN);
    received_before_ = libpq_.socket->received();
    state_ = State::idle;
    deadline_ = never;
    counts_.connects++;
    failure_.clear();
    pauses_.reset();
    owner_.connection_ready(*this);
}

// -------------------------------------------------------------------------------------------------
// Statements
// -------------------------------------------------------------------------------------------------

void Connection::run(Statement statement) {
    statement_ = std::move(statement);
    answer_ = {.ok = true};
    received_before_ = libpq_.socket->received();
    state_ = State::busy;
    deadline_ = clock_.now() + statement_->call.time_limit;
    counts_.statements++;
    if (send())
        flush();
    else
        could_not_send();
}

// Returns false if libpq refuses; its error message says why.
static bool send_query(PGconn* connection, const char* text, const Parameters& parameters) {
    const std::size_t count = parameters.size();
    std::vector<const char*> values(count);
    std::vector<int> lengths(count);
    const std::vector<int> formats(count, 1);
    for (std::size_t i = 0; i < count; i++) {
        values[i] = parameters.is_null(i) ? nullptr : parameters.bytes(i).data();
        lengths[i] = static_cast<int>(parameters.bytes(i).size());
    }
    return PQsendQueryParams(connection, text, static_cast<int>(count), parameters.types(),
                             values.data(), lengths.data(), formats.data(), 1) == 1;
}

// All statements of a pipeline are one transaction, and the settings belong to it. So they work through
// poolers. Whether a transaction is read-only can be changed only before its first query.
bool Connection::send() {
    PGconn* const connection = libpq_.connection;
    const Call& call = statement_->call;
    const bool has_limit = call.server_time_limit != 0;
    if (libpq_.keeps_session && !has_limit)
        return send_query(connection, call.text, call.parameters);
    Parameters limit;
    limit.text(std::to_string(call.server_time_limit / 1000));
    return PQenterPipelineMode(connection) == 1 &&
           (libpq_.keeps_session ||
            (send_query(connection, "SET transaction_read_only = off", {}) &&
             send_query(connection, settings_.c_str(), {}))) &&
           (!has_limit ||
            send_query(connection, "SELECT pg_catalog.set_config('statement_timeout', $1, true)",
                       limit)) &&
           send_query(connection, call.text, call.parameters) && PQpipelineSync(connection) == 1;
}

bool Connection::is_pipelined() const noexcept {
    return PQpipelineStatus(libpq_.connection) != PQ_PIPELINE_OFF &&
           PQstatus(libpq_.connection) == CONNECTION_OK;
}

// To be told by step(): run() must not call back.
void Connection::could_not_send() {
    send_failure_ = printable(error_of(libpq_.connection));
    deadline_ = 0;
}

void Connection::flush() {
    if (flush_libpq(libpq_.connection, *libpq_.socket))
        rewatch(libpq_.socket->is_blocked() ? EPOLLIN | EPOLLOUT : EPOLLIN);
    else
        could_not_send();
}

void Connection::ready() {
    if (state_ == State::connecting)
        take_connection();
    else if (is_open())
        receive();
}

// Returns false if the owner has closed the connection.
bool Connection::pass_notifications() {
    while (PGnotify* notification = PQnotifies(libpq_.connection)) {
        const std::string payload = notification->extra;
        PQfreemem(notification);
        owner_.notified(payload);
        if (libpq_.connection == nullptr)
            return false;
    }
    return true;
}

void Connection::receive() {
    MeteredSocket& socket = *libpq_.socket;
    if (!socket.has_input())
        socket.pull();
    if (socket.received() - received_before_ >
        (statement_ ? statement_->call.max_answer : Call::usual_answer)) {
        fail("the answer of the database is too long");
        return;
    }
    do {
        if (PQconsumeInput(libpq_.connection) == 0) {
            fail(printable(error_of(libpq_.connection)));
            return;
        }
    } while (socket.has_input());
    if (!pass_notifications())
        return;
    if (state_ != State::busy) {
        received_before_ = socket.received();
        return;
    }
    flush();
    while (PQisBusy(libpq_.connection) == 0) {
        PGresult* result = PQgetResult(libpq_.connection);
        if (result == nullptr && is_pipelined())
            continue;  // the end of one of its statements
        if (result == nullptr) {
            // Notifications right behind the answer were read with it, so the socket will not
            // announce them.
            if (pass_notifications())
                complete();
            return;
        }
        if (!take_result(result))
            return;
    }
}

// Returns false if the connection was closed: libpq has found that the answer breaks the protocol, or
// would wait for data of a COPY.
bool Connection::take_result(PGresult* result) {
    Rows rows(std::make_unique<LibpqRows>(result));
    const ExecStatusType status = PQresultStatus(result);
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) {
        answer_.rows = std::move(rows);
        return true;
    }
    if (status == PGRES_PIPELINE_SYNC)
        PQexitPipelineMode(libpq_.connection);
    if (status == PGRES_PIPELINE_SYNC || status == PGRES_PIPELINE_ABORTED)
        return true;
    const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    answer_.ok = false;
    answer_.error = printable(without_passwords(libpq_.connection, PQresultErrorMessage(result)));
    answer_.sqlstate = state != nullptr ? state : "";
    if (status == PGRES_FATAL_ERROR && !answer_.sqlstate.empty())
        return true;
    fail(answer_.error.empty() ? "the database sent an answer of another kind" : answer_.error);
    return false;
}

void Connection::complete() {
    if (PQstatus(libpq_.connection) != CONNECTION_OK) {
        fail(answer_.error.empty() ? "connection lost" : answer_.error);
        return;
    }
    deadline_ = never;
    state_ = State::idle;
    received_before_ = libpq_.socket->received();
    const auto done = std::move(statement_->done);
    statement_.reset();
    Answer answer = std::exchange(answer_, {});
    // The next statement runs in the server while this answer is processed.
    owner_.connection_ready(*this);
    done(std::move(answer));
}

}  // namespace outbox::relay
