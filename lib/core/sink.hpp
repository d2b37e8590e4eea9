// The interface of a sink: the code that speaks the protocol of one destination.
//
// A sink never blocks and never calls the server. It throws nothing but std::bad_alloc, which ends
// the relay (extension/base/boundary.hpp) and costs duplicates only. The loop asks it to start
// batches, waits on its one descriptor, and lets it step. It reports the result of each batch as an
// `Outcome`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/destination.hpp"
#include "core/event.hpp"

namespace outbox {

// Events that travel together in one request or one transaction. The pipeline owns it, and lends it
// to the sink from submit() until the sink reports its outcome.
struct Batch {
    std::vector<Event*> events;  // in order; at least one
    std::size_t bytes = 0;       // sum of Sink::size_of()
};

enum class Fate {
    confirmed,
    throttled,  // the destination asks for fewer requests; it has taken no event of the batch
    // It cannot be reached, does not exist or denies access: no event is at fault; see `Scope`.
    unavailable,
    failed,   // unknown: no answer in time, a server error; the batch may have taken effect
    refused,  // the destination rejects an event of the batch
    undone,   // rolled back with another batch that failed
};

// The thing that is unavailable: the smallest one that explains the answer.
enum class Scope : std::uint8_t {
    lane,         // the topic, queue or path; other lanes may work
    connection,   // this connection could not be made; the next one may
    destination,  // everything: credentials, the certificate, the name of the host
};

// The outcome of one event, for destinations that may take a batch in part.
struct EventOutcome {
    Fate fate = Fate::confirmed;
    std::string error{};
    bool permanent = false;
    Scope scope = Scope::destination;
};

// The outcome of a batch. If it is unknown, the batch has failed.
struct Outcome {
    Batch* batch = nullptr;
    Fate fate = Fate::confirmed;
    std::string error{};     // why it was not confirmed; one line, no secrets
    Micros retry_after = 0;  // pause that the destination asks for; 0 if it does not
    bool permanent = false;  // refused for good: another attempt would be refused too
    // If confirmed: the id that the destination gave to each event, in order; may be empty.
    std::vector<std::string> message_ids{};
    // The outcome of each event, in the order of the batch. If it is empty, the members above hold
    // for all events. A sink that is ordered leaves it empty.
    std::vector<EventOutcome> of_events{};
    Scope scope = Scope::destination;
    // Unavailable for good, and the options say that the destination is paused then: an operator
    // resumes it.
    bool gone = false;
};

// Says which events of one ordering key may travel in one batch.
enum class KeyPolicy {
    mixed,     // consecutive ones, together with events of other keys
    one_each,  // one event per key, because a batch may be taken in part
    alone,     // a batch has events of one key only, or events without a key
};

struct Capabilities {
    std::size_t max_batch_events = 1;
    std::size_t max_batch_bytes = 1024 * 1024;
    std::size_t max_batches = 1;   // in flight at the same time
    std::size_t more_batches = 0;  // added to max_batches while others hang
    // Batches take effect strictly in the order of submission, and none takes effect after one that
    // failed. If false, the pipeline keeps the order: one batch per key at a time.
    bool ordered = false;
    KeyPolicy keys = KeyPolicy::mixed;
    // Only events of the same lane (see Sink::lane_of) share a batch.
    bool lanes = false;
};

class Endpoints;     // core/endpoints.hpp
class Transactions;  // core/transactions.hpp

// Figures of a sink's client library about its connections, since the relay started.
struct SinkReport {
    Micros round_trip_p50 = -1;  // of recent requests with events; -1 if there were none
    Micros round_trip_p99 = -1;
    std::uint64_t queued = 0;  // events that the library has and the destination has not confirmed
    std::uint64_t connects = 0;
    std::uint64_t disconnects = 0;     // of connections that worked
    std::vector<std::string> lines{};  // of its log, since the last report; not many
    // Since the last report: requests that were sent again after a lost connection, without an outcome
    // in between. They may have arrived before.
    std::uint64_t sent_again = 0;
    std::string why_again{};  // if there are any
};

class Sink {
  public:
    virtual ~Sink() = default;

    virtual Capabilities capabilities() const noexcept = 0;

    // Becomes readable when step() has something to do; -1 if it never does.
    virtual int descriptor() const noexcept = 0;
    // Time at which step() has something to do even if the descriptor is quiet, or `never`.
    virtual Micros deadline() const noexcept = 0;

    // Size that the event adds to a batch, which max_batch_bytes limits.
    virtual std::size_t size_of(const Event& event) const noexcept { return event.payload.size(); }
    // Appends the name of the event's lane, such as the topic of its request. May throw
    // std::bad_alloc.
    virtual void lane_of(const Event&, std::string& /*lane*/) const {}

    // Starts to send. A later step() reports the outcome, even if the batch fails at once.
    virtual void submit(Batch& batch) = 0;
    // Does whatever can be done now, and appends the outcomes of batches that have ended. When an
    // ordered sink reports a failure, it reports all batches in flight; those behind the failed one
    // are undone.
    virtual void step(Micros now, std::vector<Outcome>& outcomes) = 0;

    // If the destination takes events exactly once; otherwise nullptr.
    virtual Transactions* transactions() noexcept { return nullptr; }
    // If the destination has endpoints; otherwise nullptr.
    virtual Endpoints* endpoints() noexcept { return nullptr; }

    // Returns false if the sink has no such library: then only the figures since the last report are
    // set. May throw
    // std::bad_alloc.
    virtual bool report(SinkReport& /*report*/) { return false; }
};

// Input of a sink.
struct SinkContext {
    const Destination& destination;
    const Clock& clock;
};

// The symbol that every sink module exports, besides that of check.hpp; see module_entry.hpp.
// Returns nullptr when out of memory. For a destination that cannot be used it returns a sink that
// fails every batch.
using SinkModuleEntry = Sink* (*)(const SinkContext&);

}  // namespace outbox
