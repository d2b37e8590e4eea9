// Applies batches over a connection of its own.
//
// First all at once, on the assumption that nothing fails: one transaction, and as few waits for the
// server as the handlers allow. If anything fails the transaction is rolled back and done again with a
// savepoint per event, so that the failure finds its event and the others go on.
//
// An applier, its connection and its items belong to one worker thread. It shares with others only
// `Shared`, whose members have locks or are atomic, and rows of the database: it saves offsets in a row
// of its own name, and begin_events() waits in the server for a transaction that applies the same
// event.
//
// If the connection is lost during COMMIT the result is not guessed. The batch runs again, and
// begin_events() finds the events applied or not, after the old transaction has ended.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backoff.hpp"
#include "connection.hpp"
#include "dispatcher.hpp"
#include "shared.hpp"

namespace inbox {

class Applier {
  public:
    // `name`: the row that offsets are saved in. Appliers of one name would wait for each other.
    Applier(Shared& shared, std::string name);

    // Gives each item an outcome, unless the consumer stops. Throws DatabaseError for what waiting
    // cannot repair.
    void apply(std::span<Item> items);

  private:
    using Items = std::span<Item* const>;

    void apply_open(std::span<Item> items);
    bool try_at_once(Items items);
    void apply_at_once(Items items);
    void apply_carefully(std::span<Item> items);
    void apply_piece(std::span<Item> items, Items piece);
    void apply_under_savepoint(Item& item);
    std::optional<Failure> try_handler(const Event& event);
    void end_failures(Items done);
    std::vector<bool> begin_events(Items items);
    void commit(Items items);
    void note_committed(Items items, Clock::time_point began);
    void report_failures(std::span<Item> items);
    void report_failure(Item& item);

    Connection& connection();
    void count_doubt();

    Shared& shared_;
    const std::string name_;
    std::optional<Connection> connection_;
    bool connected_before_ = false;
    bool committing_ = false;  // COMMIT is sent, and its answer not there
    bool in_doubt_ = false;    // something of the batch may be committed
    Backoff pauses_;
    Backoff conflict_pauses_;
};

// Connects if there is no connection. Throws ConnectionLost.
Connection& connect(const Shared& shared, std::optional<Connection>& connection);
// Runs the handler in the transaction there is; throws what it does.
void handle(const Shared& shared, Connection& connection, const Event& event);
// What is being thrown, as a failure of the event. Throws on what is none: the connection is lost,
// transactions got in each other's way, the server is in trouble, a statement of our own failed.
Failure failure_of_event();
// pg_inbox is not there, or not for us: no waiting mends that.
bool is_fatal(const StatementError& error);

}  // namespace inbox
