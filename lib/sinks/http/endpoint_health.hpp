// Knows whether an endpoint works, and when it is tried again.
//
// After a failed request nothing is sent for a back-off, and then one request as a probe. Any
// answer that takes an event ends the failure.
//
// An event may be at fault although the answer blames the server (500, or no answer). It is, if the
// endpoint has accepted other events between two failures of this one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/backoff.hpp"
#include "core/clock.hpp"

namespace outbox {

class EndpointHealth {
  public:
    EndpointHealth(Micros base, Micros cap, std::uint64_t seed) noexcept
        : backoff_(base, cap, seed) {}

    bool is_failing() const noexcept { return failures_ > 0; }
    unsigned failures() const noexcept { return failures_; }  // in a row
    Micros failing_since() const noexcept { return since_; }  // of is_failing()
    Micros failing_since_unix() const noexcept { return since_unix_; }
    const std::string& error() const noexcept { return error_; }  // the last one
    // Nothing is sent before this time.
    Micros not_before() const noexcept { return not_before_; }
    // Successes in a row: an endpoint that is not known to work gets few requests.
    unsigned successes() const noexcept { return successes_; }

    // `started` is the start of the request. A request that was started before the last failure
    // does not count again.
    void failed(Micros now, Micros unix_now, Micros started, Micros retry_after, std::string error);
    void worked(std::int64_t position) noexcept;
    // The endpoint has another URL, or an operator wants it to be tried.
    void forget() noexcept;

    // Takes an answer that may be the event's fault. Returns true if it is more likely the event's
    // fault than the endpoint's.
    bool blames_event(std::int64_t position, bool no_other_event);

  private:
    struct Suspect {
        std::int64_t position;
        bool others_were_taken = false;
        unsigned failures = 0;
    };

    Backoff backoff_;
    unsigned failures_ = 0;
    unsigned successes_ = 0;
    Micros since_ = 0;
    Micros since_unix_ = 0;
    Micros last_failure_ = 0;
    Micros not_before_ = 0;
    std::string error_;
    std::vector<Suspect> suspects_;  // the last ones
};

}  // namespace outbox
