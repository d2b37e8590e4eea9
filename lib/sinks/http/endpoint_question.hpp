// Writes a question to outbox_internal.ask_endpoints(), as JSON. core/endpoints.hpp and
// sql/pg_outbox/ask_endpoints.sql say what it means.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "core/endpoints.hpp"
#include "sinks/http/endpoint_lane.hpp"

namespace outbox {

class EndpointQuestion {
  public:
    void fall_back(const EndpointLane& lane);
    void settled(const EndpointLane& lane);
    void refused(const EndpointLane& lane);
    // `next_attempt` is a time since the Unix epoch.
    void fails(const EndpointLane& lane, Micros next_attempt);
    void works(const EndpointLane& lane);
    void gone(const EndpointLane& lane);
    void fetch(const EndpointLane& lane);

    std::size_t size() const noexcept;
    // `known` is empty if all endpoints are to be listed.
    std::string text(std::string_view known, const EndpointPlace& place) const;

  private:
    static void begin(std::string& list, const EndpointLane& lane);

    std::string fall_back_, settled_, refused_, failing_, gone_, fetch_;
};

}  // namespace outbox
