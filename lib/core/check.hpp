// The interface of a check: it tests whether a destination can be used, without sending it an
// event. outbox.check_destination() runs checks.
//
// A check is driven as a sink is: it never blocks and never calls the server.
#pragma once

#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/destination.hpp"

namespace outbox {

struct Finding {
    std::string subject;  // the test: address, connection, tls, ...
    bool ok = false;
    std::string detail{};  // the result, or why it failed and what to do; one line, no secrets
};

class Check {
  public:
    virtual ~Check() = default;

    // Becomes readable when step() has something to do.
    virtual int descriptor() const noexcept = 0;
    // Time at which step() has something to do even if the descriptor is quiet.
    virtual Micros deadline() const noexcept = 0;
    // Does whatever can be done now, and appends the findings. Returns true when the check is
    // complete. May throw std::bad_alloc.
    virtual bool step(Micros now, std::vector<Finding>& findings) = 0;
};

// Input of a check.
struct CheckContext {
    const Destination& destination;
    const Clock& clock;
    const std::vector<std::string>& targets;  // names of topics or queues to look for
};

// The other symbol that a sink module exports. Returns nullptr when out of memory.
using CheckModuleEntry = Check* (*)(const CheckContext&);

}  // namespace outbox
