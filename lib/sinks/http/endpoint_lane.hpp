// The state of one endpoint: what it still has to get from the sink, and what the database has to
// be told about it. endpoints_sink.hpp has the rules.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/endpoints.hpp"
#include "sinks/http/endpoint_copies.hpp"
#include "sinks/http/endpoint_health.hpp"
#include "sinks/http/webhook_signature.hpp"

namespace outbox {

struct EndpointRequest;  // endpoint_requests.hpp

enum class LaneMode : std::uint8_t {
    live,      // gets its copies from the sink
    leaving,   // a question says that it falls back, and has no answer yet
    behind,    // has fallen back; its copies were fetched
    fetching,  // the same; a question fetches for it, and has no answer yet
};

// An event that the endpoint has refused.
struct EndpointRefusal {
    std::uint64_t xid = 0;
    std::int64_t position = 0;
    std::string error;
    bool permanent = false;
};

struct EndpointLane {
    EndpointLane(EndpointRow of, EndpointHealth initial)
        : row(std::move(of)), health(std::move(initial)) {}
    EndpointLane(const EndpointLane&) = delete;
    EndpointLane& operator=(const EndpointLane&) = delete;

    EndpointRow row;
    std::string unusable;                 // why nothing can be sent to it; empty if something can
    std::optional<WebhookSigner> signer;  // made when it is needed
    EndpointHealth health;
    LaneMode mode = LaneMode::live;
    bool removed = false;  // its row is gone

    // While live, the copies that the endpoint lacks, in order, including those in flight.
    // Otherwise the copies that were fetched and are not yet sent.
    std::deque<EndpointCopy> copies;
    std::size_t unsent = 0;  // of these, those that are not in flight
    // Retries of the destination while the lane is not live. The database would not find them after
    // the endpoint's cursor, so they are sent when it is live again.
    std::vector<EndpointCopy> kept;
    std::vector<EndpointRequest*> in_flight;
    std::size_t hanging = 0;  // of these, those without an answer for a while

    // Facts that the database must be told. The first `asked_...` are in the question that is under
    // way, or that had no effect as far as is known.
    std::vector<std::int64_t> settled;
    std::vector<EndpointRefusal> refused;
    std::optional<std::string> gone;  // the error
    bool health_changed = false;
    bool failure_told = false;
    std::size_t asked_settled = 0;
    std::size_t asked_refused = 0;
    bool asked_gone = false;
    bool asked_health = false;

    bool decided =
        false;  // the answer that is being taken says whether undecided events are for it
    std::size_t undecided_from = 0;  // the first of those that it has not got otherwise
    bool to_tell = false;            // in the list of those
    bool to_fetch = false;           // in the queue of those
    Micros leaves_after = 0;         // earliest time to fall back, after too many did
    Micros fetch_at = 0;             // earliest time of the next fetch
    Micros fetched_at = 0;           // time of the last answer to one
    bool has_news = false;  // events for it were handed to the sink since it was fetched for

    // See EndpointTurns.
    bool ready = false;
    bool ready_as_healthy = false;
    Micros ready_since = 0;
    Micros waited = 0;  // for other endpoints
    Micros timer = never;

    bool is_paused() const noexcept { return row.paused || gone.has_value(); }
    bool is_troubled() const noexcept { return health.is_failing() || hanging > 0; }
    bool is_healthy() const noexcept { return mode == LaneMode::live && !is_troubled(); }
    // Time that stands still while the endpoint waits for its turn, which is not its fault.
    Micros own_time(Micros now) const noexcept {
        return now - waited - (ready && ready_as_healthy ? now - ready_since : 0);
    }
    // Returns the age of its oldest copy, by own_time(), or 0 if it has none.
    Micros lag(Micros now) const noexcept {
        return copies.empty() ? 0 : own_time(now) - copies.front().queued_at;
    }
};

// Returns the copy that is sent next, or nullptr: the first one whose key has none in flight. After
// failures it is one of several keys in turn.
EndpointCopy* next_copy(EndpointLane& lane);

// Returns whether an event that was fetched may be sent though those of this key may not.
bool has_other_key(const EndpointLane& lane, std::string_view key) noexcept;

}  // namespace outbox
