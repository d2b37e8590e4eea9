#include "relay/database/session_pool.hpp"

#include <algorithm>

namespace outbox::relay {

SessionPool::SessionPool(Poller& poller, const Clock& clock, ConnectionCounts& counts,
                         const ConnectionParameters& parameters, std::size_t size,
                         std::uint64_t seed) {
    for (std::size_t i = 0; i < std::max<std::size_t>(size, 1); i++)
        connections_.push_back(std::make_unique<Connection>(
            static_cast<Connection::Owner&>(*this), poller, clock, counts, parameters, seed + i));
}

std::deque<Statement>* SessionPool::next_queue() noexcept {
    return !writes_.empty() ? &writes_ : !reads_.empty() ? &reads_ : nullptr;
}

void SessionPool::run(Statement statement, Urgency urgency) {
    for (const auto& connection : connections_)
        if (connection->state() == Connection::State::idle) {
            connection->run(std::move(statement));
            return;
        }
    (urgency == Urgency::writes ? writes_ : reads_).push_back(std::move(statement));
    open_some();
}

// As many as there are statements that wait.
void SessionPool::open_some() {
    std::size_t wanted = writes_.size() + reads_.size();
    for (const auto& connection : connections_) {
        if (wanted == 0)
            return;
        if (connection->is_open())
            continue;
        connection->open();
        wanted--;
    }
}

void SessionPool::connection_ready(Connection& connection) {
    std::deque<Statement>* queue = next_queue();
    if (queue == nullptr)
        return;
    Statement statement = std::move(queue->front());
    queue->pop_front();
    connection.run(std::move(statement));
}

// The statement at the front fails too, so that nothing waits for ever for a database that is down.
void SessionPool::connection_lost(Connection& connection) {
    if (std::deque<Statement>* queue = next_queue()) {
        Statement statement = std::move(queue->front());
        queue->pop_front();
        statement.done({.error = connection.failure()});
    }
    open_some();
}

void SessionPool::close() noexcept {
    writes_.clear();
    reads_.clear();
    for (const auto& connection : connections_)
        connection->close();
}

std::size_t SessionPool::open_connections() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(connections_.begin(), connections_.end(),
                      [](const auto& connection) { return connection->is_open(); }));
}

bool SessionPool::is_idle() const noexcept {
    return writes_.empty() && reads_.empty() &&
           std::none_of(connections_.begin(), connections_.end(), [](const auto& connection) {
               return connection->state() == Connection::State::busy;
           });
}

Micros SessionPool::deadline() const noexcept {
    Micros earliest = never;
    for (const auto& connection : connections_)
        earliest = std::min(earliest, connection->deadline());
    return earliest;
}

void SessionPool::step(Micros now) {
    for (const auto& connection : connections_)
        connection->step(now);
}

}  // namespace outbox::relay
