// Handles the outcomes of requests: what they say about the lane and the destination, and what
// happens to the events.
#include <algorithm>

#include "core/pipeline/pipeline.hpp"

namespace outbox {

void Pipeline::take_outcome(const Outcome& outcome, Micros now) {
    auto& request = *static_cast<Request*>(outcome.batch);
    end(request);
    if (outcome.gone)
        gone_ = outcome.error;
    if (!outcome.of_events.empty()) {
        divide(outcome, now);
    } else if (outcome.fate == Fate::confirmed) {
        weigh(request, outcome, Fate::confirmed, outcome.scope, now);
        confirm(outcome, now);
    } else {
        if (outcome.fate != Fate::refused || request.events.size() == 1)
            weigh(request, outcome, outcome.fate, outcome.scope, now);
        not_confirmed(request, request.events,
                      {outcome.fate, outcome.error, outcome.permanent, outcome.scope}, now);
    }
    request.events.clear();
    spare_requests_.push_back(&request);
}

bool Pipeline::report(SinkReport& report) {
    report.sent_again = 0;
    const bool has_figures = sink_->report(report);
    if (report.sent_again > 0) {
        stats_.failed(report.sent_again);
        last_error_ = "sent again, because the connection was lost before an answer";
        if (!report.why_again.empty())
            last_error_ += ": " + report.why_again;
    }
    return has_figures;
}

void Pipeline::end(Request& request) {
    Lane& lane = *request.lane;
    std::erase(in_flight_, &request);
    lane.in_flight--;
    destination_.ended(request.period);
    lane.health.circuit.ended(request.lane_period);
    if (!request.fresh) {
        suspects_in_flight_--;
        often_in_flight_ -= request.often;
    } else if (request.hangs) {
        hanging_--;
        lane.hanging--;
    } else {
        fresh_in_flight_--;
        lane.fresh_in_flight--;
    }
}

// Counts the outcome as evidence about its lane and the destination.
void Pipeline::weigh(const Request& request, const Outcome& outcome, Fate fate, Scope scope,
                     Micros now) {
    Lane& lane = *request.lane;
    LaneHealth& health = lane.health;
    const Micros took = now - request.sent_at;
    const bool current =
        request.period == destination_.period() && request.lane_period == health.circuit.period();
    const bool probes = destination_.is_down() || health.circuit.is_down();
    // The outcome of a suspect is evidence about the suspect alone, unless there is no other
    // evidence.
    const bool hung = request.hangs && lane.is_overtaken(request.number);
    const bool counts =
        current && (probes || (request.fresh && !hung && !request.events.front()->key_failed));
    if (fate != Fate::confirmed) {
        lane.last_error = outcome.error;
        last_error_ = outcome.error;
        if (fate != Fate::undone)
            stats_.failed();
        if (fate == Fate::throttled)
            stats_.throttled();
    }
    if (outcome.retry_after > 0) {
        const Micros until = now + outcome.retry_after;
        if (fate == Fate::unavailable && scope != Scope::lane && destination_.is_down())
            destination_.leave_alone(until);
        else if (!capabilities_.ordered)
            health.not_before = std::max(health.not_before, until);
    }
    switch (fate) {
        case Fate::confirmed:
            lane.overtaken_to = std::max(lane.overtaken_to, request.number);
            health.flow.answered(now, took, false);
            if (current)
                weigh_confirmed(lane, now);
            break;
        case Fate::refused:
            if (!counts)
                break;
            if (health.refused())
                lane_failed(lane, outcome.retry_after, now);
            else
                weigh_answered(lane, now);
            break;
        case Fate::throttled:
            if (counts) {
                health.flow.answered(now, took, true);
                if (health.throttled())
                    lane_failed(lane, outcome.retry_after, now);
            }
            break;
        case Fate::failed:
            if (capabilities_.ordered ? current : counts && health.failed())
                lane_failed(lane, outcome.retry_after, now);
            break;
        case Fate::unavailable:
            if (scope == Scope::lane && !capabilities_.ordered) {
                if (counts) {
                    lane_failed(lane, outcome.retry_after, now);
                    lane.down_by_itself = true;
                }
            } else if (scope == Scope::connection && !capabilities_.ordered) {
                // Nothing was sent, so this says nothing about the events, suspects or not.
                if (current && (++lost_connections_ >= max_lost_connections || in_flight_.empty()))
                    destination_failed(outcome.retry_after, now);
            } else if (counts || (current && capabilities_.ordered)) {
                destination_failed(outcome.retry_after, now);
            }
            break;
        case Fate::undone:
            break;
    }
}

void Pipeline::weigh_confirmed(Lane& lane, Micros now) {
    lane.health.confirmed();
    lost_connections_ = lanes_lost_ = 0;
    const bool was_down = destination_.is_down() || lane.health.circuit.is_down();
    weigh_answered(lane, now);
    if (was_down)
        forgive(lane, now);
}

// The destination has looked at an event, so it works.
void Pipeline::weigh_answered(Lane& lane, Micros now) {
    if (lane.health.circuit.is_down())
        lane.health.flow.start_again(
            now, std::max(1.0, static_cast<double>(capabilities_.max_batches) / 4));
    destination_.works();
    lane.health.circuit.works();
}

void Pipeline::lane_failed(Lane& lane, Micros retry_after, Micros now) {
    if (destination_.is_down() || capabilities_.ordered) {
        destination_failed(retry_after, now);
        return;
    }
    if (!lane.health.circuit.is_down() && ++lanes_lost_ >= max_lanes_lost)
        destination_failed(retry_after, now);
    lane.health.circuit.failed(now, retry_after);
    lane.down_by_itself = false;
}

void Pipeline::destination_failed(Micros retry_after, Micros now) {
    destination_.failed(now, retry_after);
    lost_connections_ = 0;
}

// Events that failed while the lane was down may have failed because of that.
void Pipeline::forgive(Lane& lane, Micros now) {
    recovered_ = true;
    const std::vector<Tracked*> suspects(lane.suspects.begin(), lane.suspects.end());
    for (Tracked* event : suspects) {
        if (event->event->has_failed)
            continue;
        lanes_.remove_suspect(*event);
        event->failures = std::min<std::uint8_t>(event->failures, 1);
        event->again_at = std::min(event->again_at, now + pauses_.after(0));
        lanes_.add_suspect(*event);
    }
}

// ---------------------------------------------------------------------------------------------
// Confirmed
// ---------------------------------------------------------------------------------------------

void Pipeline::confirm(const Outcome& outcome, Micros now) {
    const std::vector<Event*>& events = outcome.batch->events;
    const Micros unix_now = clock_.unix_now();
    for (std::size_t i = 0; i < events.size(); i++) {
        keep_receipt(outcome, i, unix_now);
        confirm(*events[i]->tracked, now, unix_now);
    }
}

void Pipeline::keep_receipt(const Outcome& outcome, std::size_t i, Micros unix_now) {
    if (!limits_.receipts)
        return;
    const Event& event = *outcome.batch->events[i];
    receipts_.push_back({event.event_id, event.position, unix_now,
                         i < outcome.message_ids.size() ? outcome.message_ids[i] : std::string()});
}

void Pipeline::confirm(Tracked& event, Micros now, Micros unix_now) {
    if (waits_for_its_key(*event.event))
        release_key(event);
    arrived(event, now, unix_now);
}

void Pipeline::arrived(Tracked& event, Micros now, Micros unix_now) {
    const bool live = !event.event->replayed && event.event->position > limits_.live_after;
    const Micros age = unix_now - event.event->occurred_at;
    stats_.settled(live ? std::optional(age) : std::nullopt, event.event->payload.size(), now);
    if (event.event->retry)
        record(event, Record::Kind::confirmed);
    else
        finish(event);
}

void Pipeline::release_key(Tracked& event) {
    Tracked* next = chains_.release(event);
    if (next != nullptr && next->place == Tracked::Place::behind)
        lanes_.push_back(*next);
}

// Handles a batch that the destination took in part.
void Pipeline::divide(const Outcome& outcome, Micros now) {
    const auto& request = *static_cast<const Request*>(outcome.batch);
    const std::vector<Event*>& events = request.events;
    const auto taken = [&](std::size_t i) { return outcome.of_events[i].fate == Fate::confirmed; };
    const Micros unix_now = clock_.unix_now();
    const EventOutcome* worst = nullptr;
    bool any_taken = false;
    for (const EventOutcome& own : outcome.of_events) {
        any_taken |= own.fate == Fate::confirmed;
        if (own.fate != Fate::confirmed && own.fate != Fate::refused)
            worst = &own;
    }
    // The batch counts as one answer, however many events it has.
    if (any_taken)
        weigh(request, outcome, Fate::confirmed, outcome.scope, now);
    if (worst != nullptr && (!any_taken || worst->fate == Fate::throttled))
        weigh(request, {outcome.batch, worst->fate, worst->error, outcome.retry_after}, worst->fate,
              worst->scope, now);

    std::vector<Tracked*> left;           // events of one key that travelled together
    std::vector<std::size_t> first_left;  // index of the first one of each key
    for (std::size_t i = 0, end; i < events.size(); i = end) {
        for (end = i + 1; end < events.size() && events[end]->tracked->chained;)
            end++;
        left.clear();
        for (std::size_t j = i; j < end; j++)
            if (!taken(j)) {
                if (left.empty())
                    first_left.push_back(j);
                left.push_back(events[j]->tracked);
            }
        if (!left.empty() && waits_for_its_key(*events[i])) {
            chains_.keep({events.data() + i, end - i}, left);
            for (Tracked* event : left) {
                event->place = Tracked::Place::behind;
                event->chained = false;
            }
        }
        for (std::size_t j = i; j < end; j++)
            if (taken(j)) {
                keep_receipt(outcome, j, unix_now);
                left.empty() ? confirm(*events[j]->tracked, now, unix_now)
                             : arrived(*events[j]->tracked, now, unix_now);
            }
    }
    for (const std::size_t i : first_left)
        not_confirmed(request, {&events[i], 1}, outcome.of_events[i], now);
}

// ---------------------------------------------------------------------------------------------
// Not confirmed
// ---------------------------------------------------------------------------------------------

void Pipeline::not_confirmed(const Request& request, std::span<Event* const> events,
                             const EventOutcome& why, Micros now) {
    for (Event* event : events)
        event->tracked->place = Tracked::Place::behind;
    if (why.fate == Fate::refused) {
        refused(request, events, why, now);
        return;
    }
    if (why.fate == Fate::undone || capabilities_.ordered) {
        requeue(events);
        return;
    }
    const bool alone = events.size() == 1;
    const bool again = events.front()->tracked->failures > 0;
    if (!alone && (why.fate == Fate::failed || again))
        halve(events);
    for (Event* event : events)
        if (!std::exchange(event->tracked->chained, false))
            failed(*event->tracked, why, alone, now);
}

void Pipeline::requeue(std::span<Event* const> events) {
    for (Event* event : events)
        if (!std::exchange(event->tracked->chained, false))
            failed_.push_back(event->tracked);
}

void Pipeline::halve(std::span<Event* const> events) {
    for (Event* event : events)
        event->tracked->batch_limit =
            static_cast<std::uint32_t>(std::max<std::size_t>(1, events.size() / 2));
}

void Pipeline::refused(const Request& request, std::span<Event* const> events,
                       const EventOutcome& why, Micros now) {
    if (events.size() == 1) {
        refuse(*events.front()->tracked, why.error, why.permanent);
        return;
    }
    last_error_ = why.error;
    stats_.failed();
    halve(events);
    if (request.fresh) {
        requeue(events);
        return;
    }
    for (Event* event : events)
        if (!std::exchange(event->tracked->chained, false))
            suspect_after(*event->tracked, 0, now);
}

// A failed attempt makes the event a suspect.
void Pipeline::failed(Tracked& event, const EventOutcome& why, bool alone, Micros now) {
    if (is_held(*event.event)) {
        park(event);
        return;
    }
    if (event.failures == 0)
        event.works_before = event.lane->health.successes();
    // The event was not sent, so this says nothing about it. Other requests may still have
    // connections.
    const bool unsent = why.fate == Fate::unavailable && why.scope == Scope::connection;
    std::uint8_t& count = unsent ? event.unsent : event.failures;
    if (count < UINT8_MAX)
        count++;
    event.blamed = why.fate == Fate::failed && event.lane->health.successes() > event.works_before;
    if (alone && !unsent && is_at_fault(event, why))
        refuse(event, why.error, false);
    else
        suspect_after(event, pause_after(event.failures + event.unsent), now);
}

// Most first failures are accidents, so the second attempt comes soon.
Micros Pipeline::pause_after(unsigned failures) noexcept {
    const Micros pause = pauses_.after(failures - 1);
    return failures == 1 ? pause / 8 : pause;
}

// True if the event fails while its lane works for others.
bool Pipeline::is_at_fault(const Tracked& event, const EventOutcome& why) const noexcept {
    const LaneHealth& health = event.lane->health;
    if (destination_.is_down() || health.circuit.is_down())
        return false;
    // The event was at fault before, so one more failure suffices. After a lost connection it takes
    // two: the receiver may just have gone down.
    if (event.event->has_failed && why.fate == Fate::failed)
        return why.scope != Scope::connection || event.failures > 1;
    return health.successes() > event.works_before &&
           event.failures >= (why.fate == Fate::failed ? failures_of_event : unavailable_to_event);
}

void Pipeline::suspect_after(Tracked& event, Micros pause, Micros now) {
    event.again_at = now + pause;
    event.suspect = true;
    if (waits_for_its_key(*event.event))
        chains_.set_suspect(event, true);
    lanes_.add_suspect(event);
}

void Pipeline::refuse(Tracked& event, const std::string& error, bool permanent) {
    event.place = Tracked::Place::leaving;
    records_.push_back({event.event, Record::Kind::refused, permanent, error});
    hold_behind(event);
}

void Pipeline::requeue_failed() {
    std::sort(failed_.begin(), failed_.end(),
              [](const Tracked* a, const Tracked* b) { return a->turn < b->turn; });
    std::erase_if(failed_, [&](Tracked* event) {
        const bool held = is_held(*event->event);
        if (held)
            park(*event);
        return held;
    });
    for (auto event = failed_.rbegin(); event != failed_.rend(); event++)
        lanes_.push_front(**event);
    failed_.clear();
}

}  // namespace outbox
