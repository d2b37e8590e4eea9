// Credentials of requests that must be fetched and renewed.
#pragma once

#include <string>

#include "core/clock.hpp"

namespace outbox {

// Like a sink it never blocks: it is stepped when its descriptor is readable or its deadline has
// come. The class for each platform knows its kind of credentials: a token, or a set of keys.
class Credentials {
  public:
    enum class State {
        ready,
        pending,  // being fetched, for the first time or after they expired
        failed,   // could not be fetched; error() says why, and need() tries again
    };

    virtual ~Credentials() = default;

    virtual int descriptor() const noexcept { return -1; }
    virtual Micros deadline() const noexcept { return never; }

    // Call this when credentials are needed. Starts to fetch them unless they are valid or being
    // fetched. May throw std::bad_alloc, like step().
    virtual State need(Micros now) = 0;
    // Does whatever can be done now. Also renews credentials before they expire.
    virtual State step(Micros now) = 0;
    // The destination rejected the credentials. The next need() fetches others, if there can be
    // others.
    virtual void rejected() noexcept = 0;

    // One line, no secrets.
    virtual const std::string& error() const noexcept = 0;
};

}  // namespace outbox
