// Frees memory: events behind suspects, of a lane that is down, or in requests that hang leave for
// outbox.delivery.
#include <algorithm>

#include "core/limits.hpp"
#include "core/pipeline/pipeline.hpp"

namespace outbox {

// Number of events of a lane that stay in memory while it is down, for probes.
static constexpr std::size_t kept_for_probes = 16;
// With fewer events than this nothing needs to leave.
static constexpr std::size_t few_events = 16;
static constexpr Micros lasting_request = milliseconds(500);
// Pauses of make_room(): after something left, and after nothing did.
static constexpr Micros room_pause = milliseconds(10);
static constexpr Micros room_long_pause = milliseconds(100);

std::size_t Pipeline::max_waiting() const noexcept {
    return std::max(few_events, limits_.max_events / 4);
}

bool Pipeline::is_crowded() const noexcept {
    return chains_.held_back() > max_waiting() || (suspects() > 0 && starves());
}

// A crash would repeat much, because events in front are not settled.
bool Pipeline::is_stretched() const noexcept {
    return ledger_.span() > unsettled_ + limits_.max_events * max_span_factor / 2;
}

// True if too many events in memory wait for a lane that is down: an eighth of those that there may
// be, which are fewer when they are large or others have the memory.
bool Pipeline::blocks(const Lane& lane) const noexcept {
    const std::size_t most = has_memory() ? limits_.max_events : unsettled_;
    return (lanes_.count() > 1 || capabilities_.lanes) && lane.health.circuit.is_down() &&
           lane.members > std::max(few_events, most / 8);
}

bool Pipeline::any_lane_blocks() const noexcept {
    return lanes_.any([&](const Lane& lane) { return blocks(lane); });
}

// True if nothing is known to work. If one of several topics does not exist, that is not an outage,
// although for the moment no other event may be in memory.
bool Pipeline::is_outage() const noexcept {
    if (destination_.is_down())
        return true;
    const bool excused = capabilities_.lanes && lanes_.any([](const Lane& lane) {
        return lane.health.circuit.is_down() && lane.down_by_itself;
    });
    return !excused && all_lanes_down();
}

// Nothing leaves during an outage, because it would cost a write per event.
bool Pipeline::may_move() const noexcept {
    return limits_.moves_waiting && !capabilities_.ordered && !paused() && !is_outage() &&
           chains_.held() < max_held_keys;
}

void Pipeline::make_room(Micros now) {
    // While an operator is at work records cannot be written, so no more are added.
    if (now < next_room_at_ || !may_move() || !records_.empty())
        return;
    if (is_crowded())
        release_behind_suspects(now);
    lanes_.for_each([&](Lane& lane) {
        if (blocks(lane))
            release_lane(lane);
    });
    if (is_stretched())
        release_front(now);
    next_room_at_ = now + (records_.empty() ? room_long_pause : room_pause);
}

// Suspects leave with the events behind them, until half of max_waiting() is left. Suspects that
// failed only once, and requests that only just began to hang, stay: most of these end soon, and a
// retry of a key that has left is slower. If nothing else can go on, those with a long wait ahead
// leave too.
void Pipeline::release_behind_suspects(Micros now) {
    const bool starved = starves();
    const auto lasts = [&](const Request& request) {
        return (request.hangs || !request.fresh) && now - request.sent_at >= lasting_request;
    };
    const auto enough = [&] { return !starved && chains_.held_back() <= max_waiting() / 2; };
    lanes_.for_each([&](Lane& lane) {
        const std::vector<Tracked*> suspects(lane.suspects.begin(), lane.suspects.end());
        for (Tracked* event : suspects)
            if (!enough() && (starved || event->next_of_key != nullptr) &&
                (event->failures >= failures_of_event || event->event->has_failed) &&
                (!starved || lane.health.circuit.is_down() ||
                 event->again_at > now + lasting_request))
                release(*event, event->failures / 2u);
    });
    for (Request* request : in_flight_)
        if (!enough() && lasts(*request) &&
            (starved || request->events.back()->tracked->next_of_key != nullptr))
            move(*request);
}

void Pipeline::release_lane(Lane& lane) {
    const auto steps =
        static_cast<unsigned>(std::min<std::uint64_t>(lane.health.circuit.failures(), 20));
    // Heads; the events behind each stay too.
    const std::size_t kept = starves() ? 1 : kept_for_probes;
    while (lane.fresh.size() > kept) {
        Tracked& event = *lane.fresh.front();
        lanes_.pop_front(lane);
        release(event, steps);
    }
    while (lane.suspects.size() > kept)
        release(**lane.suspects.begin(), steps);
}

// One event must not keep the log back: a crash would repeat all events that overtook it. Requests
// that hang for long would come to the front one after the other, so all of them leave.
void Pipeline::release_front(Micros now) {
    Tracked* first = ledger_.first_unsettled();
    if (first == nullptr)
        return;
    if (first->place == Tracked::Place::pausing)
        release(*first, first->failures);
    for (Request* request : in_flight_)
        if ((request->hangs && now - request->sent_at >= lasting_request) ||
            std::find(request->events.begin(), request->events.end(), first->event) !=
                request->events.end())
            move(*request);
}

// The event and those behind it leave for outbox.delivery. If the event is at fault, this counts as
// an attempt.
void Pipeline::release(Tracked& event, unsigned steps) {
    if (event.place == Tracked::Place::pausing)
        lanes_.remove_suspect(event);
    event.place = Tracked::Place::leaving;
    records_.push_back({.event = event.event,
                        .kind = event.blamed ? Record::Kind::refused : Record::Kind::released,
                        .error = event.lane->last_error,
                        .steps = steps});
    hold_behind(event);
}

// Turns the events of a request into retries that are under way.
void Pipeline::move(Request& request) {
    for (std::size_t i = 0, end; i < request.events.size(); i = end) {
        for (end = i + 1; end < request.events.size() && request.events[end]->tracked->chained;)
            end++;
        Tracked& head = *request.events[i]->tracked;
        if (head.event->retry)
            continue;
        for (std::size_t j = i; j < end; j++) {
            Event& event = *request.events[j];
            records_.push_back({.event = &event, .kind = Record::Kind::moved});
            event.retry = true;
        }
        if (head.event->ordering_key.empty())
            continue;
        chains_.hold(head.event->ordering_key);
        park_linked(chains_.cut_behind(head, *request.events[end - 1]->tracked));
    }
}

}  // namespace outbox
