// Copies events to lanes, and lets lanes send in turn.
#include "sinks/http/endpoints_sink.hpp"

#include <algorithm>

#include "sinks/http/http_sink.hpp"

namespace outbox {

// An endpoint that keeps its copies because too many fail is looked at this often.
static constexpr Micros look_again_after = seconds(1);
// The same for one that does not answer.
static constexpr Micros look_at_hanging = milliseconds(100);
// The least time between two fetches for an endpoint for which nothing was found.
static constexpr Micros between_fetches = milliseconds(50);
// Requests that have ended do not wait for more than these copies.
static constexpr std::size_t copies_per_step = 20'000;

EndpointsSink::EndpointsSink(const Destination& destination, const Clock& clock)
    : clock_(clock),
      options_(endpoint_options(destination)),
      requests_(options_, destination, clock) {}

Capabilities EndpointsSink::capabilities() const noexcept {
    return {.max_batch_events = 16, .max_batches = 1024, .ordered = true};
}

Micros EndpointsSink::deadline() const noexcept {
    if (moves_ || copies_.has_confirmed())
        return 0;
    return std::min(requests_.deadline(), turns_.next_timer());
}

void EndpointsSink::pause(bool paused) noexcept {
    paused_ = paused;
    moves_ = true;
}

void EndpointsSink::submit(Batch& batch) {
    handed_.push_back({&copies_.add(batch)});
    moves_ = true;
}

void EndpointsSink::step(Micros now, std::vector<Outcome>& outcomes) {
    moves_ = false;
    requests_.step(now, ended_, hang_);
    take_hanging(now);
    take_ended(now);
    while (EndpointLane* lane = turns_.take_due(now))
        attend(*lane, now);
    copy_events(now);
    start_requests(true, now);
    start_requests(false, now);
    copies_.take_confirmed(outcomes);
}

// -------------------------------------------------------------------------------------------------
// Events
// -------------------------------------------------------------------------------------------------

bool EndpointsSink::last_event(std::uint64_t& xid, std::int64_t& position) const noexcept {
    xid = last_xid_;
    position = last_position_;
    return has_last_;
}

void EndpointsSink::copy_events(Micros now) {
    if (!knows_endpoints_)
        return;
    const std::size_t enough = copies_.count() + copies_per_step;
    while (!handed_.empty() && !copies_.is_full()) {
        if (copies_.count() >= enough) {
            moves_ = true;
            return;
        }
        Handed& handed = handed_.front();
        const std::vector<Event*>& events = handed.source->batch->events;
        copy_event(*events[handed.next], *handed.source, now);
        if (++handed.next < events.size())
            continue;
        if (under_way_ || in_doubt_)
            uncertain_.push_back(handed.source);
        else
            copies_.completed(*handed.source);
        handed_.pop_front();
    }
}

void EndpointsSink::copy_event(Event& event, EventSource& source, Micros now) {
    for (EndpointLane* lane : directory_.of_topic(event.topic))
        offer(*lane, event, source, now);
    if (under_way_ || in_doubt_)
        undecided_.push_back({&event, &source});
    if (event.retry)
        return;
    has_last_ = true;
    last_xid_ = event.xid;
    last_position_ = event.position;
}

void EndpointsSink::offer(EndpointLane& lane, Event& event, EventSource& source, Micros now) {
    if (!event.retry && lane.row.since && lane.row.since->finished(event.xid))
        return;
    switch (lane.mode) {
        case LaneMode::live:
            add_copy(lane, event, source, now);
            break;
        case LaneMode::behind:
            if (event.retry)
                lane.kept.push_back(copies_.copy(event, source, 0));
            if (!std::exchange(lane.has_news, true))
                attend(lane, now);
            break;
        case LaneMode::leaving:
        case LaneMode::fetching:
            lane.has_news = true;
            break;
    }
}

void EndpointsSink::add_copy(EndpointLane& lane, Event& event, EventSource& source, Micros now) {
    lane.copies.push_back(copies_.copy(event, source, lane.own_time(now)));
    lane.unsent++;
    if (!lane.ready || lane.timer == never)
        attend(lane, now);
}

// The requests of copies that are in flight go on without them.
void EndpointsSink::release_copies(EndpointLane& lane) {
    forget_copies_in_flight(lane);
    for (; !lane.copies.empty(); lane.copies.pop_front())
        copies_.release(lane.copies.front());
    lane.unsent = 0;
}

void EndpointsSink::forget_copies_in_flight(EndpointLane& lane) noexcept {
    for (EndpointRequest* request : lane.in_flight)
        request->has_copy = false;
}

// -------------------------------------------------------------------------------------------------
// Turns
// -------------------------------------------------------------------------------------------------

// To be called after any change of a lane. Finds out what it needs now, and when to look again.
void EndpointsSink::attend(EndpointLane& lane, Micros now) {
    if (lane.removed)
        return;
    if (can_send(lane, now))
        turns_.make_ready(lane, now);
    if (lane.mode == LaneMode::live && now >= lane.leaves_after && should_leave(lane, now))
        to_tell(lane);
    if (wants_fetch(lane, now))
        to_fetch(lane);
    turns_.arm(lane, next_look(lane, now));
}

bool EndpointsSink::can_send(const EndpointLane& lane, Micros now) const noexcept {
    const bool sends =
        lane.mode == LaneMode::behind || (lane.mode == LaneMode::live && lane.refused.empty());
    if (!sends || lane.unsent == 0 || lane.is_paused() || now < lane.health.not_before())
        return false;
    // An endpoint that is not known to work gets one request, as a probe.
    const std::size_t most =
        lane.health.is_failing()
            ? 1
            : std::min<std::size_t>(options_.requests_per_endpoint, lane.health.successes() + 1);
    return lane.in_flight.size() < most;
}

bool EndpointsSink::should_leave(const EndpointLane& lane, Micros now) const noexcept {
    if (lane.is_paused() || lane.row.wanted || !lane.refused.empty())
        return true;
    if (lane.copies.empty())
        return false;
    if (lane.health.is_failing() && now >= lane.health.failing_since() + patience)
        return true;
    const Micros lag = lane.lag(now);
    const bool hinders =
        lane.copies.size() > max_queue || (lane.hanging > 0 && copies_.held_events() >= many_held);
    return lag >= max_lag || (lag >= patience && hinders);
}

bool EndpointsSink::wants_fetch(const EndpointLane& lane, Micros now) const noexcept {
    return lane.mode == LaneMode::behind && !lane.is_paused() && lane.copies.empty() &&
           lane.in_flight.empty() && now >= lane.health.not_before() &&
           (now >= lane.fetch_at || (lane.has_news && now >= lane.fetched_at + between_fetches));
}

Micros EndpointsSink::next_look(const EndpointLane& lane, Micros now) const noexcept {
    Micros at = never;
    const auto by = [&](Micros time) { at = std::min(at, std::max(time, now + 1)); };
    if (lane.unsent > 0 && lane.health.not_before() > now)
        by(lane.health.not_before());
    if (lane.mode == LaneMode::live && !lane.copies.empty()) {
        const Micros lag = lane.lag(now);
        by(now + (lag < max_lag ? max_lag - lag : look_again_after));
        if (lane.copies.size() > max_queue && lag < patience)
            by(now + patience - lag);
        if (lane.hanging > 0)
            by(now + look_at_hanging);
        if (lane.health.is_failing()) {
            const Micros leaves_at = lane.health.failing_since() + patience;
            by(leaves_at > now ? leaves_at : now + look_again_after);
        }
    }
    if (lane.mode == LaneMode::behind && lane.copies.empty() && lane.in_flight.empty() &&
        !lane.is_paused() && !lane.to_fetch) {
        const Micros fetch_at = lane.has_news ? lane.fetched_at + between_fetches : lane.fetch_at;
        by(std::max(fetch_at, lane.health.not_before()));
    }
    return at;
}

void EndpointsSink::start_requests(bool healthy, Micros now) {
    if (paused_)
        return;
    while (turns_.any_ready(healthy) && requests_.may_start(healthy)) {
        EndpointLane& lane = turns_.take_ready(healthy, now);
        if (!can_send(lane, now))
            continue;
        if (lane.is_healthy() == healthy) {
            start_request(lane, now);
        } else {
            turns_.make_ready(lane, now);  // in the other queue
            moves_ = true;
        }
    }
}

void EndpointsSink::start_request(EndpointLane& lane, Micros now) {
    EndpointCopy* copy = next_copy(lane);
    if (copy == nullptr)
        return;  // each key has one in flight
    requests_.start(lane, *copy->event, now);
    lane.unsent--;
    if (lane.mode == LaneMode::live) {
        copy->in_flight = true;
        lane.in_flight.back()->has_copy = true;
    } else {
        const auto at = std::find_if(lane.copies.begin(), lane.copies.end(),
                                     [&](const EndpointCopy& one) { return &one == copy; });
        const EndpointCopy sent = *at;
        lane.copies.erase(at);
        copies_.release(sent);
    }
    attend(lane, now);
}

std::unique_ptr<Sink> create_endpoints_sink(const SinkContext& context) {
    return std::make_unique<EndpointsSink>(context.destination, context.clock);
}

}  // namespace outbox
