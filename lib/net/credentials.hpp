// What a sink proves with who it is, where that has to be fetched and renewed.
#pragma once

#include <string>

#include "core/clock.hpp"

namespace outbox {

// Like a sink it never blocks: it is stepped when its descriptor is readable or its deadline has
// come. What they are, a token or a set of keys, the class for one platform knows.
class Credentials {
  public:
    enum class State {
        ready,
        pending,  // being fetched, for the first time or because they have expired
        failed,   // could not be had; error() says why. need() tries again
    };

    virtual ~Credentials() = default;

    virtual int descriptor() const noexcept { return -1; }
    virtual Micros deadline() const noexcept { return never; }

    // They are needed now: begins to fetch them unless they are there or on their way. May throw
    // std::bad_alloc, as step() may.
    virtual State need(Micros now) = 0;
    // Moves what can move; also renews, ahead of their expiry, those that are there.
    virtual State step(Micros now) = 0;
    // The destination would not have them: the next need() gets others, where there can be others.
    virtual void rejected() noexcept = 0;

    // One line, no secrets.
    virtual const std::string& error() const noexcept = 0;
};

}  // namespace outbox
