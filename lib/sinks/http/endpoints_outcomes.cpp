// Changes a lane when one of its requests has ended.
#include <algorithm>

#include "sinks/http/endpoints_sink.hpp"
#include "sinks/http/verdict.hpp"

namespace outbox {

void EndpointsSink::take_hanging(Micros now) {
    for (EndpointRequest* request : hang_) {
        EndpointLane& lane = *request->lane;
        drop_fetched(lane);  // it would keep the memory of all that was fetched with it
        attend(lane, now);
    }
    hang_.clear();
}

void EndpointsSink::take_ended(Micros now) {
    for (EndpointRequest* request : ended_) {
        EndpointLane& lane = *request->lane;
        if (!lane.removed)
            take_outcome(*request, now);
        attend(lane, now);
        requests_.give_back(*request);
    }
    ended_.clear();
}

void EndpointsSink::take_outcome(EndpointRequest& request, Micros now) {
    const Verdict verdict = verdict_of(request);
    switch (verdict.fate) {
        case Fate::confirmed:
            confirmed(request);
            break;
        case Fate::refused:
            refused(request, verdict.permanent);
            break;
        default:
            if (request.status == gone_status && options_.pauses_if_gone)
                gone(request, now);
            else
                failed(request, now);
            break;
    }
}

void EndpointsSink::confirmed(EndpointRequest& request) {
    EndpointLane& lane = *request.lane;
    if (lane.health.is_failing()) {
        lane.health_changed = lane.failure_told;
        if (lane.health_changed)
            to_tell(lane);
    }
    lane.health.worked(request.position);
    if (request.has_copy)
        remove_copy(request);
    if (lane.mode == LaneMode::live)
        return;
    lane.settled.push_back(request.position);
    to_tell(lane);
}

void EndpointsSink::refused(EndpointRequest& request, bool permanent) {
    EndpointLane& lane = *request.lane;
    lane.refused.push_back({.xid = request.xid,
                            .position = request.position,
                            .error = requests_.explain(request),
                            .permanent = permanent});
    to_tell(lane);
    if (request.has_copy) {
        EndpointCopy& copy = *copy_of(request);
        copy.in_flight = false;
        copy.refused = true;
    }
    if (lane.mode != LaneMode::behind)
        return;
    // The database decides what becomes of later events of its key.
    std::erase_if(lane.copies, [&](const EndpointCopy& copy) {
        const bool waits = !request.key.empty() && copy.event->ordering_key == request.key;
        if (waits)
            copies_.release(copy);
        return waits;
    });
    lane.unsent = lane.copies.size();
}

void EndpointsSink::gone(EndpointRequest& request, Micros now) {
    EndpointLane& lane = *request.lane;
    endpoint_failed(request, now);
    lane.gone = requests_.explain(request);
    to_tell(lane);
    if (request.has_copy)
        put_back(request);
    drop_fetched(lane);
}

void EndpointsSink::failed(EndpointRequest& request, Micros now) {
    EndpointLane& lane = *request.lane;
    if (is_fault_of_event(request)) {
        refused(request, false);
        return;
    }
    endpoint_failed(request, now);
    if (request.has_copy)
        put_back(request);
    drop_fetched(lane);
}

// The events are fetched again when the endpoint is tried again.
void EndpointsSink::drop_fetched(EndpointLane& lane) {
    if (lane.mode == LaneMode::behind)
        release_copies(lane);
}

// Judges only fetched events, because a live endpoint falls back before this can be known.
bool EndpointsSink::is_fault_of_event(EndpointRequest& request) {
    EndpointLane& lane = *request.lane;
    if (lane.mode != LaneMode::behind || verdict_of(request).fate != Fate::failed)
        return false;
    // Other server errors come from a proxy in front of the endpoint.
    const bool is_only_one = request.status == 500 && !has_other_key(lane, request.key);
    return lane.health.blames_event(request.position, is_only_one);
}

void EndpointsSink::endpoint_failed(EndpointRequest& request, Micros now) {
    EndpointLane& lane = *request.lane;
    const Micros unix_now = clock_.unix_now();
    lane.health.failed(now, unix_now, request.started,
                       retry_after_of(request.retry_after, unix_now), requests_.explain(request));
    lane.health_changed = true;
    if (lane.mode != LaneMode::live)
        to_tell(lane);
}

std::deque<EndpointCopy>::iterator EndpointsSink::copy_of(const EndpointRequest& request) {
    std::deque<EndpointCopy>& copies = request.lane->copies;
    return std::find_if(copies.begin(), copies.end(),
                        [&](const EndpointCopy& copy) { return copy.event == request.event; });
}

void EndpointsSink::remove_copy(const EndpointRequest& request) {
    const auto at = copy_of(request);
    const EndpointCopy copy = *at;
    request.lane->copies.erase(at);
    copies_.release(copy);
}

void EndpointsSink::put_back(const EndpointRequest& request) {
    if (!wants(*request.lane, *request.event)) {  // any more
        remove_copy(request);
        return;
    }
    copy_of(request)->in_flight = false;
    request.lane->unsent++;
}

}  // namespace outbox
