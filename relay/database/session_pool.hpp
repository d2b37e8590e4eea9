// Connections for the statements of many destinations of one database. A statement that finds no
// idle connection waits for one, writes before reads. Connections are opened when they are first
// needed.
//
// Statements of one destination may run at the same time, on different connections. Their order is
// the concern of the destination, which waits for an answer before it writes again. `done` of a
// statement is called in the thread of the loop, never within run(). A connection that is lost
// fails its own statement and the one at the front of the queue.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "relay/database/connection.hpp"

namespace outbox::relay {

class SessionPool final : private Connection::Owner {
  public:
    // Writes of destinations go before reads.
    enum class Urgency { writes, reads };

    SessionPool(Poller& poller, const Clock& clock, ConnectionCounts& counts,
                const ConnectionParameters& parameters, std::size_t size, std::uint64_t seed);

    void run(Statement statement, Urgency urgency);
    // Gives up all statements, which get no answer, and closes the connections.
    void close() noexcept;

    std::size_t open_connections() const noexcept;
    bool is_idle() const noexcept;
    Micros deadline() const noexcept;
    void step(Micros now);

  private:
    void connection_ready(Connection& connection) override;
    void connection_lost(Connection& connection) override;
    std::deque<Statement>* next_queue() noexcept;
    void open_some();

    std::vector<std::unique_ptr<Connection>> connections_;
    std::deque<Statement> writes_;
    std::deque<Statement> reads_;
};

}  // namespace outbox::relay
