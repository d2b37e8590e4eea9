// A connection to a database. Runs one statement at a time, without blocking, and reconnects after
// a failure.
//
// Each statement has a deadline. A connection that misses it is closed, and its statement fails:
// the network may be cut, or the server may hang.
#pragma once

#include <libpq-fe.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/backoff.hpp"
#include "core/clock.hpp"
#include "relay/database/connector.hpp"
#include "relay/database/poller.hpp"
#include "relay/database/statement.hpp"

namespace outbox::relay {

// Counters of all connections to one database.
struct ConnectionCounts {
    std::uint64_t connects = 0;
    std::uint64_t disconnects = 0;
    std::uint64_t statements = 0;
};

class Connection final : private Watcher {
  public:
    enum class State { closed, connecting, idle, busy };

    struct Owner {
        // The connection can take a statement.
        virtual void connection_ready(Connection& connection) = 0;
        // It could not be opened, or was lost. If it had a statement, that has failed before.
        virtual void connection_lost(Connection& connection) = 0;
        virtual void notified(const std::string& /*payload*/) {}

      protected:
        ~Owner() = default;
    };

    static constexpr Micros connect_time_limit = seconds(10);

    Connection(Owner& owner, Poller& poller, const Clock& clock, ConnectionCounts& counts,
               const ConnectionParameters& parameters, std::uint64_t seed);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    State state() const noexcept { return state_; }
    bool is_open() const noexcept { return state_ == State::idle || state_ == State::busy; }
    // Returns why it is closed, or an empty string if it has not been opened yet.
    const std::string& failure() const noexcept { return failure_; }

    // Begins to connect, after a pause if the last attempt failed.
    void open();
    // Closes it for good, until the next open(). The statement under way gets no answer.
    void close() noexcept;
    // Starts a statement; it must be idle.
    void run(Statement statement);

    // Must be called at this time.
    Micros deadline() const noexcept;
    void step(Micros now);

    // For an open connection.
    bool keeps_session() const noexcept { return libpq_.keeps_session; }
    const char* host() const noexcept { return PQhost(libpq_.connection); }
    const char* port() const noexcept { return PQport(libpq_.connection); }
    const char* user() const noexcept { return PQuser(libpq_.connection); }

  private:
    void ready() override;
    void connect();
    void take_connection();
    void receive();
    bool pass_notifications();
    bool take_result(PGresult* result);
    bool send();
    bool is_pipelined() const noexcept;
    void flush();
    void could_not_send();
    void complete();
    void fail(std::string why);
    void release() noexcept;
    void watch(int descriptor, std::uint32_t events);
    void rewatch(std::uint32_t events) noexcept;
    void unwatch() noexcept;

    Owner& owner_;
    Poller& poller_;
    const Clock& clock_;
    ConnectionCounts& counts_;
    const ConnectionParameters& parameters_;
    Backoff pauses_;

    State state_ = State::closed;
    std::unique_ptr<Connector> connector_;
    LibpqConnection libpq_;
    std::string settings_;  // of each transaction, unless it keeps its session
    int watched_ = -1;
    std::uint32_t watched_events_ = 0;
    Micros connect_at_ = never;
    Micros deadline_ = never;  // of the attempt to connect, or of the statement
    std::string failure_;
    std::string send_failure_;  // to be told by step(), because run() must not call back

    std::optional<Statement> statement_;
    Answer answer_;
    std::uint64_t received_before_ = 0;  // bytes before the answer
};

}  // namespace outbox::relay
