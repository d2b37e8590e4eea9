// What tells whether a destination can be used, without giving it an event: for
// outbox.check_destination().
//
// A check is driven as a sink is: it never blocks, never calls the server.
#pragma once

#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/destination.hpp"

namespace outbox {

struct Finding {
    std::string subject;  // what was looked at: address, connection, tls, ...
    bool ok = false;
    std::string detail{};  // what is there, or why not and what to do; one line, no secrets
};

class Check {
  public:
    virtual ~Check() = default;

    // Becomes readable when step() has something to do.
    virtual int descriptor() const noexcept = 0;
    // When step() has something to do though the descriptor is quiet.
    virtual Micros deadline() const noexcept = 0;
    // Moves everything that can move, and appends what was found. True: that was all. May throw
    // std::bad_alloc.
    virtual bool step(Micros now, std::vector<Finding>& findings) = 0;
};

// What a check is made from.
struct CheckContext {
    const Destination& destination;
    const Clock& clock;
    const std::vector<std::string>& targets;  // topics or queues to look for, as the template
                                              // makes them
};

// The other symbol a sink module exports. Returns nullptr when memory ran out.
using CheckModuleEntry = Check* (*)(const CheckContext&);

}  // namespace outbox
