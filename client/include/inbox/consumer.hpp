// The consumer: takes events from a source, applies each exactly once, and acknowledges what is
// committed.
//
//     inbox::Consumer consumer({.name = "catalog"}, std::make_unique<inbox::PullSource>(...),
//                              [] { return PQconnectdb("dbname=catalog"); },
//                              [](inbox::Transaction& t, const inbox::Event& e) {
//                                  t.apply("video", {"video_id"}, "version", *e.payload);
//                              });
//     consumer.run();
//
// For each batch, in one transaction: inbox.begin_events(), the handler for each event that is new,
// inbox.save_offset(), COMMIT; only then the acknowledgement. Needs pg_inbox in that database, and
// a role with inbox.grant_consume.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "inbox/connect.hpp"
#include "inbox/error.hpp"
#include "inbox/event.hpp"
#include "inbox/source.hpp"
#include "inbox/transaction.hpp"

namespace inbox {

// Applies one event. Called from several threads at once, but never for two events of one ordering
// key, except for one that a person has redriven; again for the same event when its transaction was
// undone.
using Handler = std::function<void(Transaction&, const Event&)>;

struct ConsumerOptions {
    std::string name{};      // the consumer: what deduplication and offsets go by
    std::string instance{};  // who this is, in updated_by; empty: host and process id
    int connections = 4;     // threads with a connection each; 1 or more
    // Events applied in one transaction, at most. 1: each alone. More is faster: a commit waits for
    // the disk.
    int batch_size = 100;
    // After so many failed attempts an event becomes a dead letter; 0: as the consumer's policy
    // says (inbox.set_policy).
    int max_attempts = 0;
    // What may be received and not settled yet: beyond it nothing is received.
    std::size_t max_outstanding_messages = 1000;
    std::size_t max_outstanding_bytes = 64 << 20;
    // Pauses before the next attempt to reach the database or the source, and before an event that
    // failed is given back: a random part of the first, doubled up to the second.
    std::chrono::milliseconds retry_base{200};
    std::chrono::milliseconds retry_max{30'000};
    // How often it looks for resets of its offset, prunes the window, and takes redriven messages.
    std::chrono::milliseconds housekeeping_interval{10'000};
    // How long stop() lets work that has begun go on. Then statements are left alone; handlers that
    // wait for something else are waited for.
    std::chrono::milliseconds drain_limit{30'000};
    bool prepare_statements = true;  // off behind a pooler that cannot (transaction pooling)
    Log log{};
};

// Counters since the start, and times of the last thousand batches.
struct ConsumerMetrics {
    std::uint64_t received = 0;    // deliveries, repetitions included
    std::uint64_t applied = 0;     // handled and committed
    std::uint64_t duplicates = 0;  // found to be applied already
    std::uint64_t failures = 0;    // attempts of a handler that failed
    std::uint64_t dead = 0;        // given up: see inbox.dead_letter
    std::uint64_t acked = 0;
    std::uint64_t nacked = 0;
    std::uint64_t transactions = 0;
    std::uint64_t in_doubt = 0;  // commits whose answer was lost, looked up afterwards
    std::uint64_t database_reconnects = 0;
    std::uint64_t source_reconnects = 0;
    std::size_t outstanding_messages = 0;
    std::size_t outstanding_bytes = 0;
    std::chrono::microseconds apply_p50{0};  // of a batch, from its start to its commit
    std::chrono::microseconds apply_p99{0};
    std::chrono::milliseconds lag{0};  // from published_at to committed, of the last event
};
// As OpenMetrics text, with the consumer's name as a label.
std::string open_metrics(const ConsumerMetrics& metrics, const std::string& consumer);

class Consumer {
  public:
    // Throws std::invalid_argument for options out of range.
    Consumer(ConsumerOptions options, std::unique_ptr<Source> source, ConnectionFactory connect,
             Handler handler);
    ~Consumer();
    Consumer(const Consumer&) = delete;
    Consumer& operator=(const Consumer&) = delete;

    // Works until stop() is called. Losing the database or the source is no reason to return; what
    // no waiting can mend is thrown: DatabaseError (no pg_inbox, no right to it), SourceError (not
    // transient).
    void run();

    // Asks run() to finish: receives no more, drains for at most drain_limit, gives back the rest.
    // From any thread, or a signal handler: it only writes to an eventfd.
    void stop() noexcept;

    ConsumerMetrics metrics() const;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
