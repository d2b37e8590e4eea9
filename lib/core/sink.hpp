// What every sink is: the code that speaks one destination's protocol.
//
// A sink never blocks, never calls the server, and throws nothing but std::bad_alloc, which ends the
// relay (extension/base/boundary.hpp) and costs duplicates only: the loop asks it to start batches,
// waits on its one descriptor, and lets it step. What became of a batch it says through `Outcome`s.
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

// Events that travel together: one request, one transaction. Owned by the pipeline; lent to the
// sink from submit() until its outcome is reported.
struct Batch {
    std::vector<Event*> events;  // in order; at least one
    std::size_t bytes = 0;       // by Sink::size_of()
};

enum class Fate {
    confirmed,
    throttled,    // the destination asks for fewer requests; it has taken none of the batch
    unavailable,  // it cannot be reached, is not there, or will not have us: nothing that any event
                  // could be blamed for. `Scope` says what is unavailable
    failed,   // no success, and nobody knows why: no answer in time, a server error. It may have
              // taken effect
    refused,  // the destination will not have an event of it
    undone,   // the failure of another batch took it along
};

// What is unavailable: the smallest thing that explains the answer.
enum class Scope : std::uint8_t {
    lane,         // the topic, queue or path: other lanes may work
    connection,   // this one could not be had; the next one may
    destination,  // whatever is sent: credentials, the certificate, the name of the host
};

// What became of one event of a batch that the destination did not treat as a whole.
struct EventOutcome {
    Fate fate = Fate::confirmed;
    std::string error{};
    bool permanent = false;
    Scope scope = Scope::destination;
};

// What became of a batch. A batch whose fate is unknown has failed.
struct Outcome {
    Batch* batch = nullptr;
    Fate fate = Fate::confirmed;
    std::string error{};     // why not; one line, no secrets
    Micros retry_after = 0;  // the destination asked to be left alone for so long; 0: it did not
    bool permanent = false;  // refused now, and whenever it is tried again
    std::vector<std::string> message_ids{};  // confirmed: what the destination calls each event of
                                             // the batch, in order; empty: it does not say
    // Each event's own, in the order of the batch; empty: what stands above is true of all. Not of
    // a sink that is ordered.
    std::vector<EventOutcome> of_events{};
    Scope scope = Scope::destination;
};

// Which events of the same ordering key may travel in one batch.
enum class KeyPolicy {
    mixed,     // those that follow each other, with events of other keys
    one_each,  // one event of a key: a batch may be taken in part
    alone,     // a batch has events of one key, or events without a key
};

struct Capabilities {
    std::size_t max_batch_events = 1;
    std::size_t max_batch_bytes = 1024 * 1024;
    std::size_t max_batches = 1;   // in flight at the same time,
    std::size_t more_batches = 0;  // and so many more while others hang
    // Batches take effect strictly in the order of submission, and after one has failed no later
    // one does. Without it the pipeline keeps the order: per key one batch at a time.
    bool ordered = false;
    KeyPolicy keys = KeyPolicy::mixed;
    // Only events of the same lane (see Sink::lane_of) share a batch.
    bool lanes = false;
};

class Sink {
  public:
    virtual ~Sink() = default;

    virtual Capabilities capabilities() const noexcept = 0;

    // Becomes readable when step() has something to do; -1: never.
    virtual int descriptor() const noexcept = 0;
    // When step() has something to do though the descriptor is quiet; `never`: nothing pends.
    virtual Micros deadline() const noexcept = 0;

    // What the event adds to the size of a batch, which max_batch_bytes bounds.
    virtual std::size_t size_of(const Event& event) const noexcept { return event.payload.size(); }
    // Appends the name of the event's lane: such as the topic a request is for. May throw
    // std::bad_alloc.
    virtual void lane_of(const Event&, std::string& /*lane*/) const {}

    // Starts to send. The outcome comes from a later step(), also when it fails at once.
    virtual void submit(Batch& batch) = 0;
    // Moves everything that can move, and appends what became of batches. When a sink is ordered, a
    // failure reports all batches in flight, those behind it as undone.
    virtual void step(Micros now, std::vector<Outcome>& outcomes) = 0;
};

// What a sink is made from.
struct SinkContext {
    const Destination& destination;
    const Clock& clock;
};

// The symbol that every sink module exports, besides that of check.hpp; see module_entry.hpp. Returns
// nullptr when memory ran out; a destination that cannot be used says so by failing its batches.
using SinkModuleEntry = Sink* (*)(const SinkContext&);

}  // namespace outbox
