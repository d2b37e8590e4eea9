// Requests to endpoints that are in flight: makes them, limits their number, and says which of them
// hang.
//
// Endpoints in trouble share a part of the requests, so that they cannot use them up. A request
// without an answer for a while does not count any more: others take its place, up to as many
// again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/secrets.hpp"
#include "net/transport.hpp"
#include "sinks/http/endpoint_lane.hpp"
#include "sinks/http/endpoint_options.hpp"
#include "sinks/http/event_requests.hpp"

namespace outbox {

// It does not refer to its event, which may be released while it is in flight.
struct EndpointRequest : Exchange {
    EndpointLane* lane = nullptr;
    std::uint64_t xid = 0;
    std::int64_t position = 0;
    std::string key;
    bool has_copy = false;         // the copy is still in the lane
    const Event* event = nullptr;  // only to find this copy
    bool healthy = false;          // when it was started, the endpoint was
    bool hangs = false;
    Micros started = 0;
    std::uint64_t number = 0;
};

class EndpointRequests {
  public:
    static constexpr Micros hangs_after = seconds(1);

    EndpointRequests(const EndpointOptions& options, const Destination& destination,
                     const Clock& clock);

    int descriptor() const noexcept { return transport_->descriptor(); }
    Micros deadline() const noexcept;
    std::size_t in_flight() const noexcept { return in_flight_; }

    // Returns true if a request may be started to an endpoint that is healthy, or is not.
    bool may_start(bool healthy) const noexcept;
    void start(EndpointLane& lane, const Event& event, Micros now);
    // Appends the requests that have ended; each must be given back. `hang` gets those that hang
    // since the last step.
    void step(Micros now, std::vector<EndpointRequest*>& ended,
              std::vector<EndpointRequest*>& hang);
    void give_back(EndpointRequest& request) noexcept;
    void report(SinkReport& report) noexcept { repeats_.report(report); }

    // Returns why it failed, in one line of ASCII without secrets.
    std::string explain(const EndpointRequest& request) const;

  private:
    EndpointRequest& spare();
    void make(EndpointRequest& request, const Event& event);
    // Returns false if it cannot be signed.
    bool sign(EndpointRequest& request, Event& event);
    void ended(EndpointRequest& request) noexcept;
    void note_hanging(Micros now, std::vector<EndpointRequest*>& hang);

    const Clock& clock_;
    const std::array<std::string, 2> master_secrets_;
    const std::size_t most_;          // that do not hang
    const std::size_t max_troubled_;  // of these, to endpoints that are not healthy
    const Secrets secrets_;
    EventRequests requests_;
    std::vector<std::unique_ptr<EndpointRequest>> all_;
    std::vector<EndpointRequest*> spare_;
    std::vector<EndpointRequest*> failed_;  // could not be started
    std::vector<Exchange*> done_;
    Repeats repeats_;
    // In the order in which they were started, with those that have ended since: by their number.
    std::deque<std::pair<EndpointRequest*, std::uint64_t>> young_;
    std::uint64_t started_ = 0;
    std::size_t in_flight_ = 0;
    std::size_t troubled_ = 0;  // of these, to endpoints that were not healthy
    std::size_t hanging_ = 0;
    std::size_t hanging_troubled_ = 0;
    std::size_t bytes_ = 0;                 // of their bodies
    std::unique_ptr<Transport> transport_;  // refers to requests
};

}  // namespace outbox
