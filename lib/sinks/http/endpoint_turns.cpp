#include "sinks/http/endpoint_turns.hpp"

#include <algorithm>

namespace outbox {

void EndpointTurns::make_ready(EndpointLane& lane, Micros now) {
    if (lane.ready)
        return;
    const bool healthy = lane.is_healthy();
    queue(healthy).push_back(&lane);
    lane.ready = true;
    lane.ready_as_healthy = healthy;
    lane.ready_since = now;
}

EndpointLane& EndpointTurns::take_ready(bool healthy, Micros now) {
    EndpointLane& lane = *queue(healthy).front();
    queue(healthy).pop_front();
    lane.ready = false;
    if (healthy)
        lane.waited += now - lane.ready_since;
    return lane;
}

void EndpointTurns::arm(EndpointLane& lane, Micros at) {
    if (at >= lane.timer)
        return;
    timers_.emplace(at, &lane);
    timers_.erase({lane.timer, &lane});
    lane.timer = at;
}

EndpointLane* EndpointTurns::take_due(Micros now) {
    if (next_timer() > now)
        return nullptr;
    EndpointLane* lane = timers_.begin()->second;
    timers_.erase(timers_.begin());
    lane->timer = never;
    return lane;
}

void EndpointTurns::remove(EndpointLane& lane) noexcept {
    if (lane.ready)
        std::erase(queue(lane.ready_as_healthy), &lane);
    timers_.erase({lane.timer, &lane});
    lane.ready = false;
    lane.timer = never;
}

}  // namespace outbox
