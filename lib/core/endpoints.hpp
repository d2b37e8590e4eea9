// Endpoints: how a relay and a sink that serves many subscribers agree on what each of them has.
//
// The endpoints of a destination are rows of outbox.endpoint. The sink gets each event once, and sends a
// copy to every endpoint that wants its topic. It confirms the event when no endpoint needs it from the
// sink any more:
//
//   live     gets its copies from the sink. It costs the database nothing.
//   behind   has fallen back: it failed for too long, is too slow, refused an event, or is paused. It has
//            a cursor of its own, and the events that it lacks are in outbox.batch, outbox.delivery and
//            the log after that cursor, as those of a pull destination. The sink fetches them for it,
//            a batch at a time, until it has caught up.
//
// Only the sink decides when an endpoint changes sides, and only the database knows what one that is
// behind lacks. So the sink asks the database, by way of the relay (Relay::Wish::consult), with one
// question at a time:
//
//   sink                                               relay, by outbox_internal.ask_endpoints()
//   due(); ask(): endpoints that fall back and their   one transaction under the lock of the
//   missing events, settled and refused events,        destination's cursor
//   endpoints to fetch for
//   answered(): changed endpoints, fetched events,     after its commit
//   endpoints that have caught up
//
// While a question about an endpoint is under way, new events for it wait in the sink. If the endpoint
// has fallen back with the answer, they are forgotten, because they lie after its cursor. If it has
// caught up with it, those are forgotten that the answer's snapshot covers.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/event.hpp"
#include "core/snapshot.hpp"

namespace outbox {

// A row of outbox.endpoint.
struct EndpointRow {
    std::string name;
    std::string url;
    std::string topics;  // as the option `topics`
    std::string secret_name;
    // The transaction that has changed it, or decided about its events.
    std::uint64_t changed_by = 0;
    bool paused = false;
    bool behind = false;
    // Not behind, but rows of outbox.delivery wait for it, as after outbox.redrive(): it has to fall
    // back.
    bool wanted = false;
    // It has the events of all transactions that had finished in it; std::nullopt if it has none of
    // before.
    std::optional<Snapshot> since;
};

// Events fetched for an endpoint that is behind.
struct EndpointFetched {
    std::string name;
    std::vector<Event*> events;  // of EndpointAnswer::blocks, in the order in which they are sent
    std::vector<int> attempts;   // of each event: how often the endpoint has refused it
    // Nothing is left: it is live again, and has what had finished in this snapshot.
    std::optional<Snapshot> caught_up;
    // If there are no events: time until the next one is due; -1 if an operator has to act first.
    Micros due_in = -1;
};

struct EndpointAnswer {
    std::string known;      // to be part of the next question
    std::size_t count = 0;  // endpoints of the destination
    // Those that have changed since the `known` of the question; all of them if it had none. No more than
    // the first one for which no relay has room.
    std::vector<EndpointRow> changed;
    std::vector<EndpointFetched> fetched;
    std::vector<std::unique_ptr<EventBlock>> blocks;
};

// The place in the log up to which events were handed to the sink, as in Cursor.
struct EndpointPlace {
    Snapshot done;
    std::optional<Snapshot> upto;
    std::int64_t position = 0;
};

class Endpoints {
  public:
    virtual ~Endpoints() = default;

    // When the next question is due, or `never`. Not asked while one is under way.
    virtual Micros due() const noexcept = 0;
    // Rows of outbox.endpoint, or decisions of operators, may have changed.
    virtual void look_again() noexcept = 0;
    // While paused, no request is started, also not for events that wait in the sink, and nothing is
    // fetched. Requests in flight end, and questions about all else go on.
    virtual void pause(bool paused) noexcept = 0;
    // Endpoints that are left alone after a failure are tried at once.
    virtual void forget_waits() = 0;
    // Number of requests in flight.
    virtual std::size_t in_flight() const noexcept = 0;

    // The last event of the log, retries left aside, that the sink has copied to its endpoints: its
    // transaction and position. Those handed to the sink after it are still to come. False if there
    // was none.
    virtual bool last_event(std::uint64_t& xid, std::int64_t& position) const noexcept = 0;

    // Returns the question, as JSON for outbox_internal.ask_endpoints(). It is under way until
    // answered() or failed().
    virtual std::string ask(const EndpointPlace& place) = 0;
    virtual void answered(EndpointAnswer&& answer) = 0;
    // The question had no effect, as far as is known. It is asked again.
    virtual void failed() noexcept = 0;

    // Says which endpoints get nothing, because there are too many; empty if there are not.
    virtual const std::string& left_out() const noexcept = 0;
};

}  // namespace outbox
