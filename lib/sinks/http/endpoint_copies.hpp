// The copies of events that endpoints still need, and the memory of these events: batches of the
// pipeline, and blocks that were fetched. A batch is confirmed when no copy of it is left.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <vector>

#include "core/event.hpp"
#include "core/sink.hpp"

namespace outbox {

// Where events of copies are. EndpointCopies owns it.
struct EventSource {
    Batch* batch = nullptr;                           // nullptr if the events were fetched
    std::vector<std::unique_ptr<EventBlock>> blocks;  // if the events were fetched
    std::size_t bytes = 0;                            // of these
    std::size_t copies = 0;
    bool complete = false;  // no further copies are made
    std::list<EventSource>::iterator self{};
};

// An event that one endpoint needs.
struct EndpointCopy {
    Event* event = nullptr;
    EventSource* source = nullptr;
    Micros queued_at = 0;  // by the clock of its lane
    bool in_flight = false;
    bool refused = false;  // the endpoint has refused it, and the database does not know it yet
};

class EndpointCopies {
  public:
    // Above this, no further events are copied.
    static constexpr std::size_t max_copies = 200'000;
    // Above this, no further events are fetched.
    static constexpr std::size_t max_fetched_bytes = 32 * 1024 * 1024;

    EventSource& add(Batch& batch);
    EventSource& add(std::vector<std::unique_ptr<EventBlock>> blocks);
    // All copies have been made.
    void completed(EventSource& source);

    EndpointCopy copy(Event& event, EventSource& source, Micros queued_at) noexcept;
    void release(const EndpointCopy& copy);

    bool is_full() const noexcept { return count_ >= max_copies; }
    bool may_fetch() const noexcept { return fetched_bytes_ < max_fetched_bytes; }
    // Returns the number of events that the pipeline has in memory for the remaining copies.
    std::size_t held_events() const noexcept { return held_events_; }
    std::size_t count() const noexcept { return count_; }

    bool has_confirmed() const noexcept { return !confirmed_.empty(); }
    void take_confirmed(std::vector<Outcome>& outcomes);

  private:
    EventSource& added(EventSource source);
    void remove_if_done(EventSource& source);

    std::list<EventSource> sources_;
    std::size_t count_ = 0;
    std::size_t held_events_ = 0;
    std::size_t fetched_bytes_ = 0;
    std::vector<Batch*> confirmed_;
};

}  // namespace outbox
