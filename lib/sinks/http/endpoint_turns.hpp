// When each endpoint is looked at: those that are ready to send, first come, first served, and
// those that have to wait for a time.
#pragma once

#include <deque>
#include <set>
#include <utility>

#include "sinks/http/endpoint_lane.hpp"

namespace outbox {

class EndpointTurns {
  public:
    // The lane has something to send. No effect if it is ready already.
    void make_ready(EndpointLane& lane, Micros now);
    bool any_ready(bool healthy) const noexcept { return !queue(healthy).empty(); }
    // Takes the first lane that was healthy, or was not, when it became ready. There must be one.
    EndpointLane& take_ready(bool healthy, Micros now);

    // The lane must be looked at by this time, if not earlier.
    void arm(EndpointLane& lane, Micros at);
    Micros next_timer() const noexcept { return timers_.empty() ? never : timers_.begin()->first; }
    // Takes a lane whose time has come, or returns nullptr.
    EndpointLane* take_due(Micros now);

    // Forgets the lane, because its endpoint is gone.
    void remove(EndpointLane& lane) noexcept;

  private:
    const std::deque<EndpointLane*>& queue(bool healthy) const noexcept {
        return healthy ? healthy_ : troubled_;
    }
    std::deque<EndpointLane*>& queue(bool healthy) noexcept {
        return healthy ? healthy_ : troubled_;
    }

    std::deque<EndpointLane*> healthy_;
    std::deque<EndpointLane*> troubled_;
    std::set<std::pair<Micros, EndpointLane*>> timers_;
};

}  // namespace outbox
