// Chooses what is sent next: fresh events and suspects, batches, and requests that hang.
#include <algorithm>

#include "core/pipeline/pipeline.hpp"

namespace outbox {

std::size_t Pipeline::most_requests() const noexcept {
    return capabilities_.max_batches + capabilities_.more_batches;
}

std::size_t Pipeline::suspects_allowed() const noexcept {
    return std::max<std::size_t>(1, most_requests() / suspects_share);
}

void Pipeline::submit_ready(Micros now) {
    while (!paused() && send_one(now)) {
    }
}

bool Pipeline::send_one(Micros now) {
    if (in_flight_.size() >= most_requests() || !destination_.may_send(now))
        return false;
    if (destination_.is_down())
        return send_fresh(now, true) || probe_with_suspect(now);
    if (lanes_.suspects() == 0)
        return send_fresh(now, false);
    if (fresh_since_suspect_ >= fresh_per_suspect)
        return send_suspect(now) || send_fresh(now, false);
    return send_fresh(now, false) || send_suspect(now);
}

bool Pipeline::may_take_fresh(const Lane& lane, Micros now) const noexcept {
    const LaneHealth& health = lane.health;
    if (capabilities_.ordered)
        return true;
    if (!health.circuit.may_send(now) || now < health.not_before)
        return false;
    if (health.circuit.is_down())
        return true;
    if (now < health.flow.earliest())
        return false;
    // A lane with slow requests must leave some of them to other lanes.
    const std::size_t most = capabilities_.max_batches;
    return lanes_.count() == 1 || lane.fresh_in_flight < std::max<std::size_t>(1, most - most / 4);
}

// With `probe`, the destination is down: any lane may send, but lanes that work come first.
bool Pipeline::send_fresh(Micros now, bool probe) {
    if (!lanes_.any_fresh() || (!probe && fresh_in_flight_ >= capabilities_.max_batches))
        return false;
    Request& request = spare_request();
    for (int pass = 0; pass < (probe ? 2 : 1); pass++)
        for (std::size_t turns = lanes_.turns(); turns > 0; turns--) {
            Lane* lane = lanes_.turn();
            if (lane == nullptr)
                return false;
            const bool may =
                probe ? pass > 0 || !lane->health.circuit.is_down() : may_take_fresh(*lane, now);
            if (may && !waits_for_more(*lane))
                fill(request, *lane);
            lanes_.end_turn();
            if (!request.events.empty()) {
                submit(request, *lane, true, now);
                return true;
            }
        }
    return false;
}

bool Pipeline::may_take_suspect(const Lane& lane, Micros now) const noexcept {
    const LaneHealth& health = lane.health;
    if (lane.suspects.empty() || now < health.not_before || !health.circuit.may_send(now))
        return false;
    if (health.circuit.is_down())
        return lane.fresh.empty();  // as a probe
    return now >= health.flow.earliest();
}

// Returns the first suspect that failed often, or nullptr.
static Tracked* first_often(const Lane& lane) noexcept {
    // Suspects that failed often come after all others.
    if (lane.suspects.empty() || !BySuspicion::often(**lane.suspects.rbegin()))
        return nullptr;
    Tracked earliest = **lane.suspects.rbegin();
    earliest.again_at = 0;
    earliest.turn = 0;
    const auto first = lane.suspects.lower_bound(&earliest);
    return first == lane.suspects.end() ? nullptr : *first;
}

static Tracked* first_seldom(const Lane& lane) noexcept {
    if (lane.suspects.empty() || BySuspicion::often(**lane.suspects.begin()))
        return nullptr;
    return *lane.suspects.begin();
}

Tracked* Pipeline::longest_waiting(const Lane& lane) noexcept {
    Tracked* seldom = first_seldom(lane);
    Tracked* often = first_often(lane);
    if (seldom == nullptr || often == nullptr)
        return seldom != nullptr ? seldom : often;
    return seldom->again_at <= often->again_at ? seldom : often;
}

Micros Pipeline::suspect_due(const Lane& lane) const noexcept {
    const Tracked* first = longest_waiting(lane);
    return first == nullptr ? never : first->again_at;
}

// Suspects that failed often may use half of the share of suspects.
Tracked* Pipeline::due_suspect(const Lane& lane, Micros now) const noexcept {
    Tracked* seldom = first_seldom(lane);
    if (seldom != nullptr && seldom->again_at <= now)
        return seldom;
    Tracked* often = first_often(lane);
    const std::size_t most = std::max<std::size_t>(1, suspects_allowed() / 2);
    return often != nullptr && often->again_at <= now && often_in_flight_ < most ? often : nullptr;
}

bool Pipeline::send_suspect(Micros now) {
    const std::size_t most = most_requests();
    const std::size_t occupied = suspects_in_flight_ + hanging_;
    // Keeps the last request free for fresh events.
    if (suspects_in_flight_ >= suspects_allowed() || (most > 1 && occupied + 1 >= most))
        return false;
    Tracked* first = nullptr;
    lanes_.for_each([&](Lane& lane) {
        if (!may_take_suspect(lane, now))
            return;
        Tracked* suspect =
            lane.health.circuit.is_down() ? *lane.suspects.begin() : due_suspect(lane, now);
        if (suspect != nullptr && (first == nullptr || suspect->again_at < first->again_at))
            first = suspect;
    });
    return first != nullptr && send_suspects(*first, now);
}

bool Pipeline::send_suspects(Tracked& first, Micros now) {
    Lane& lane = *first.lane;
    Request& request = spare_request();
    fill_with_suspects(request, lane, first, now);
    submit(request, lane, false, now);
    return true;
}

// Without fresh events, suspects probe the destination: those that failed least, then each in turn.
bool Pipeline::probe_with_suspect(Micros now) {
    Tracked* first = nullptr;
    lanes_.for_each([&](Lane& lane) {
        if (!lane.suspects.empty() &&
            (first == nullptr || BySuspicion()(*lane.suspects.begin(), first)))
            first = *lane.suspects.begin();
    });
    return first != nullptr && send_suspects(*first, now);
}

Pipeline::Request& Pipeline::spare_request() {
    if (spare_requests_.empty())
        spare_requests_.push_back(requests_.emplace_back(std::make_unique<Request>()).get());
    Request& request = *spare_requests_.back();
    request.bytes = 0;
    request.events.clear();
    return request;
}

void Pipeline::submit(Request& request, Lane& lane, bool fresh, Micros now) {
    spare_requests_.pop_back();
    in_flight_.push_back(&request);
    request.lane = &lane;
    request.number = ++sent_;
    request.period = destination_.period();
    request.lane_period = lane.health.circuit.period();
    request.sent_at = now;
    request.fresh = fresh;
    request.often = !fresh && BySuspicion::often(*request.events.front()->tracked);
    request.hangs = false;
    lane.in_flight++;
    destination_.sent();
    lane.health.circuit.sent();
    lane.health.flow.sent(now);
    if (fresh) {
        lane.fresh_in_flight++;
        fresh_in_flight_++;
        fresh_since_suspect_++;
    } else {
        suspects_in_flight_++;
        often_in_flight_ += request.often;
        fresh_since_suspect_ = 0;
    }
    sink_->submit(request);
}

// Full batches cost a destination less. More events come while a window is being read: at once if
// there is room, otherwise when requests in flight end. An ordered sink has further batches in
// flight anyway.
bool Pipeline::waits_for_more(const Lane& lane) const noexcept {
    if (capabilities_.ordered || destination_.is_down() || lane.health.circuit.is_down() ||
        !ledger_.is_open())
        return false;
    if (capabilities_.keys == KeyPolicy::alone && !lane.fresh.front()->event->ordering_key.empty())
        return has_room();  // each event has a batch of its own, with what waits behind it
    return (has_room() || lane.fresh_in_flight > 0) && !fills_batch(lane);
}

bool Pipeline::fills_batch(const Lane& lane) const noexcept {
    if (lane.fresh.size() >= capabilities_.max_batch_events)
        return true;
    std::size_t bytes = 0;
    for (const Tracked* event : lane.fresh)
        bytes += sink_->size_of(*event->event);
    return bytes >= capabilities_.max_batch_bytes;
}

// `limit` is the number of events in the batch. It falls with events that must travel with fewer.
bool Pipeline::take(Request& request, Tracked& event, std::size_t& limit) {
    const std::size_t limit_with =
        event.batch_limit > 0 ? std::min<std::size_t>(limit, event.batch_limit) : limit;
    const std::size_t size = sink_->size_of(*event.event);
    const bool fits =
        request.events.empty() || (request.events.size() < limit_with &&
                                   request.bytes + size <= capabilities_.max_batch_bytes);
    if (fits) {
        request.events.push_back(event.event);
        request.bytes += size;
        event.place = Tracked::Place::sent;
        limit = limit_with;
    }
    return fits;
}

// Events that wait behind this one may travel in the same batch.
void Pipeline::take_with_followers(Request& request, Tracked& event, std::size_t& limit) {
    Tracked* last = &event;
    while (capabilities_.keys != KeyPolicy::one_each && last->next_of_key != nullptr &&
           last->next_of_key->lane == event.lane && take(request, *last->next_of_key, limit)) {
        last = last->next_of_key;
        last->chained = true;
    }
}

void Pipeline::fill(Request& request, Lane& lane) {
    std::size_t limit = capabilities_.max_batch_events;
    while (!lane.fresh.empty()) {
        Tracked& event = *lane.fresh.front();
        const bool held = is_held(*event.event);
        if (!held && !take(request, event, limit))
            break;
        lanes_.pop_front(lane);
        if (held) {
            park(event);
            continue;
        }
        take_with_followers(request, event, limit);
        if (capabilities_.keys == KeyPolicy::alone && !event.event->ordering_key.empty())
            break;
    }
}

void Pipeline::fill_with_suspects(Request& request, Lane& lane, Tracked& first, Micros now) {
    std::size_t limit = capabilities_.max_batch_events;
    for (Tracked* event = &first; event != nullptr && take(request, *event, limit);
         event = due_suspect(lane, now)) {
        lanes_.remove_suspect(*event);
        take_with_followers(request, *event, limit);
        if (capabilities_.keys == KeyPolicy::alone && !event->event->ordering_key.empty())
            break;
    }
}

// ---------------------------------------------------------------------------------------------
// Requests that hang
// ---------------------------------------------------------------------------------------------

Micros Pipeline::hangs_at(const Request& request) const noexcept {
    const Micros usual = request.lane->health.flow.usual_duration();
    return request.sent_at +
           (usual == 0 ? hangs_at_first : std::max(hangs_at_least, usual * hangs_factor));
}

// A request can hang only if others overtook it; otherwise the whole destination is slow. If all
// requests are slow, a few more are sent, which may overtake them. One lane cannot have all of
// these.
bool Pipeline::can_hang(const Request& request, bool explores) const noexcept {
    return request.fresh && !request.hangs && !capabilities_.ordered &&
           (explores || request.lane->is_overtaken(request.number)) &&
           (lanes_.count() == 1 || request.lane->hanging < most_requests() / 2);
}

bool Pipeline::explores() const noexcept {
    if (fresh_in_flight_ < capabilities_.max_batches || capabilities_.more_batches == 0)
        return false;
    const auto tried = std::count_if(in_flight_.begin(), in_flight_.end(), [](const Request* r) {
        return r->hangs && !r->lane->is_overtaken(r->number);
    });
    return static_cast<std::size_t>(tried) <
           std::max<std::size_t>(1, capabilities_.more_batches / 4);
}

void Pipeline::mark_hanging(Micros now) {
    if (most_requests() == 1)
        return;
    for (Request* request : in_flight_) {
        if (now < hangs_at(*request) || !can_hang(*request, explores()))
            continue;
        request->hangs = true;
        request->lane->hanging++;
        hanging_++;
        request->lane->fresh_in_flight--;
        fresh_in_flight_--;
        for (Event* event : request->events) {
            event->tracked->suspect = true;
            if (!event->tracked->chained && waits_for_its_key(*event))
                chains_.set_suspect(*event->tracked, true);
        }
    }
}

}  // namespace outbox
