// The consumer: takes events from a source, applies each exactly once to a PostgreSQL database, and
// acknowledges it after the commit.
//
//     inbox::Consumer consumer({.name = "catalog"},
//                              std::make_unique<inbox::PullSource>("dbname=shop", "catalog"),
//                              [] { return PQconnectdb("dbname=catalog"); },
//                              [](inbox::Transaction& t, const inbox::Event& e) {
//                                  t.apply("video", {"video_id"}, "version", e.payload.value());
//                              });
//     consumer.run();
//
// Each batch is one transaction: inbox.begin_events() says which events are new, the handler is
// called for those, inbox.save_offset() saves how far the source was read, then COMMIT. Only then
// the batch is acknowledged. The database needs pg_inbox, and its role needs inbox.grant_consume().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "inbox/connect.hpp"
#include "inbox/error.hpp"
#include "inbox/event.hpp"
#include "inbox/source.hpp"
#include "inbox/transaction.hpp"

namespace inbox {

// Applies one event.
//
// Threads: called from ConsumerOptions::connections threads at once, but never for two events of
// one ordering key. The exception is an event that an operator redrives: it comes late, and may run
// beside a newer event of its key.
//
// Repetition: called again for the same event if its transaction was rolled back, also because of
// another event of the batch. Effects outside the transaction happen once or more.
//
// Errors: PermanentFailure makes the event a dead letter at once. Any other exception rolls the
// event back and counts as a failed attempt. The handler must neither commit nor roll back.
using Handler = std::function<void(Transaction&, const Event&)>;

// An attempt to apply an event, which has ended.
struct Attempt {
    const std::string& consumer;
    const Event& event;
    std::chrono::system_clock::time_point began{};  // its transaction
    std::chrono::system_clock::time_point ended{};
    std::string_view error{};  // empty if the event is applied and committed
};

// Called once for each attempt, after the commit or the failure, from the threads that apply events.
// They wait for it, so it should only take a note. Its exceptions are logged.
using Observer = std::function<void(const Attempt&)>;

// Consumer's constructor throws std::invalid_argument for a value out of range.
struct ConsumerOptions {
    // Name of the consumer, under which pg_inbox keeps deduplication and offsets. Not empty.
    // Processes with the same name share the work.
    std::string name{};
    // Name of this process, which shows in updated_by. Empty for host name and process id.
    std::string instance{};
    // Threads that apply events, each with a connection of its own; at least 1.
    int connections = 4;
    // Highest number of events in one transaction; at least 1. A commit waits for the disk, so
    // larger batches are faster.
    int batch_size = 100;
    // Number of failed attempts after which an event becomes a dead letter. 0 for the policy of the
    // consumer (inbox.set_policy()), which always holds for redriven events.
    int max_attempts = 0;
    // Limits for deliveries that were received and are not settled: their number, and the bytes of
    // their payloads and headers. Each is at least 1. At a limit receiving stops, and it goes on
    // below 80 % of it. One event larger than the limit is still received, alone.
    std::size_t max_outstanding_messages = 1000;
    std::size_t max_outstanding_bytes = 64 << 20;
    // Pause before the next attempt to reach the database or the source, and before a failed event
    // is given back. It is random, up to retry_base after the first failure, up to twice that after
    // the next, and never longer than retry_max. More than 0; retry_max at least retry_base.
    std::chrono::milliseconds retry_base{200};
    std::chrono::milliseconds retry_max{30'000};
    // Time between rounds of housekeeping: it looks for resets of the offset and redriven messages,
    // and prunes the deduplication window. More than 0.
    std::chrono::milliseconds housekeeping_interval{10'000};
    // Time that batches which have begun get after stop(). Then their statements are cancelled. A
    // handler that waits for something other than the database is still waited for. 0 or more.
    std::chrono::milliseconds drain_limit{30'000};
    // True if statements are prepared. Turn it off behind a pooler in transaction mode that does
    // not support prepared statements.
    bool prepare_statements = true;
    // Receives every failure with its error text. If it is empty, nothing is logged.
    Log log = log_to_stderr;
    // Sees every attempt, for example to send spans (<inbox/otlp.hpp>). May be empty.
    Observer observer{};
};

// Counters since the consumer was made, and percentiles of the last thousand batches.
struct ConsumerMetrics {
    std::uint64_t received = 0;      // deliveries, repetitions included
    std::uint64_t applied = 0;       // events handled and committed
    std::uint64_t duplicates = 0;    // deliveries of events that were applied before
    std::uint64_t failures = 0;      // attempts of the handler that failed
    std::uint64_t dead = 0;          // events that became dead letters (inbox.dead_letter)
    std::uint64_t acked = 0;         // deliveries given to Source::ack()
    std::uint64_t nacked = 0;        // deliveries given to Source::nack()
    std::uint64_t transactions = 0;  // committed
    std::uint64_t in_doubt = 0;      // commits whose answer was lost, and was looked up later
    std::uint64_t database_reconnects = 0;
    std::uint64_t source_reconnects = 0;
    std::uint64_t skipped = 0;    // events that can no longer be received from the source, at most
    std::uint64_t recreated = 0;  // times that the source was made again or cut back
    std::size_t outstanding_messages = 0;    // now: received and not settled
    std::size_t outstanding_bytes = 0;       // now: their size
    std::chrono::microseconds apply_p50{0};  // of a batch, from its first statement to its commit
    std::chrono::microseconds apply_p99{0};
    std::chrono::milliseconds lag{0};  // of the last event, from published_at to its commit
};

// Returns the metrics as OpenMetrics text, each with the label consumer="...".
std::string open_metrics(const ConsumerMetrics& metrics, const std::string& consumer);

// Thread-safety: run() is called once, by one thread; stop() and metrics() by any thread at any
// time between the constructor and the destructor. Lifetime: the consumer owns its source and its
// connections. run() must have returned before the destructor is called.
class Consumer {
  public:
    // Connects to nothing yet. Throws std::invalid_argument if an option is out of range, or if
    // source, connect or handler is empty.
    Consumer(ConsumerOptions options, std::unique_ptr<Source> source, ConnectionFactory connect,
             Handler handler);
    ~Consumer();
    Consumer(const Consumer&) = delete;
    Consumer& operator=(const Consumer&) = delete;

    // Works until stop() is called, and returns after everything that was begun has ended. If the
    // database or the source is lost it connects again, for as long as it takes.
    //
    // Throws if waiting cannot help: DatabaseError if pg_inbox is missing, the role lacks a
    // privilege, or the consumer belongs to another role; SourceError if it is not transient;
    // std::system_error if the system has no more threads.
    void run();

    // Asks run() to finish: nothing more is received, batches that have begun get drain_limit, and
    // the source takes the rest back. Returns at once. Safe in a signal handler: it only writes to
    // an eventfd.
    void stop() noexcept;

    // Returns a snapshot of the counters.
    ConsumerMetrics metrics() const;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
