// Applies batches over a connection of its own.
//
// First it applies the whole batch at once, assuming that nothing fails: in one transaction, and
// with as few waits for the server as the handlers allow. If anything fails, it rolls back and
// applies the batch again with a savepoint per event. So the failure is tied to its event, and the
// others go on.
//
// An applier, its connection and its items belong to one worker thread. It shares two things with
// other threads: `Shared`, whose members have locks or are atomic, and rows of the database. It
// saves offsets in a row of its own name, so appliers do not wait for each other there.
// begin_events() waits in the server for a transaction that applies the same event.
//
// If the connection is lost while handlers run, each event of the batch is applied alone. An event that loses it
// again has failed: its handler ends its session, or takes longer than a time-out of the server allows.
//
// If the connection is lost during COMMIT, the result is unknown. The batch runs again, and
// begin_events() finds its events applied or not, after the old transaction has ended.
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
    // `name` is the row in which offsets are saved. Appliers with the same name would wait for each
    // other.
    Applier(Shared& shared, Source& source, std::string name);

    // Gives each item a result, unless the consumer stops. Throws DatabaseError if waiting cannot
    // help.
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
    void tell(const Item& item, std::string_view error) noexcept;
    void report_failures(std::span<Item> items);
    void report_failure(Item& item);
    bool record_failure(const Item& item);
    void blame(Item& item, const ConnectionLost& error);

    Connection& connection();
    void count_doubt();

    Shared& shared_;
    Source& source_;
    const std::string name_;
    std::optional<Connection> connection_;
    bool connected_before_ = false;
    bool at_work_ = false;                           // handlers run, or what they did is committed
    bool one_by_one_ = false;                        // the connection was lost while they did
    bool committing_ = false;                        // COMMIT was sent and not answered
    bool in_doubt_ = false;                          // a part of the batch may be committed
    std::chrono::system_clock::time_point began_{};  // the transaction
    Backoff pauses_;
    Backoff conflict_pauses_;
};

// Connects if there is no connection. Throws ConnectionLost.
Connection& connect(const Shared& shared, std::optional<Connection>& connection);
// Sends the statement that saves a position.
void send_position(const Shared& shared, Connection& connection, const Position& position,
                   const std::string& saver);
// Runs the handler in the open transaction. Throws what the handler throws.
void handle(const Shared& shared, Connection& connection, const Event& event);
// Turns the current exception into a failure of the event. Rethrows it if the event is not at
// fault: the connection is lost, there was a conflict, the server is in trouble, or a statement of
// the library failed.
Failure failure_of_event();
// pg_inbox is missing, or the role may not use it. Waiting cannot help.
bool is_fatal(const StatementError& error);

}  // namespace inbox
