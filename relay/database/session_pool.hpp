// Connections for the statements of many destinations of one database. A statement that finds no
// idle connection waits for one. Connections are opened when they are first needed.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "relay/database/connection.hpp"

namespace outbox::relay {

class SessionPool final : private Connection::Owner {
  public:
    // What statements of destinations wait behind: writes go before reads.
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
