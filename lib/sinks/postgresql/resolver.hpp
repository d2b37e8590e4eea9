// Resolves a host name without blocking. libpq would resolve it inside PQconnectPoll(), and while a
// name server hangs the relay could not notice that it should end.
//
// Protocol. A thread runs getaddrinfo(), which cannot be cancelled. Only the thread writes
// `addresses` and `error`; then it stores `state`, and then it signals the descriptor. The owner
// must not call addresses() before the descriptor is readable. addresses() reads `state` first, so
// it sees the complete texts, which never change afterwards. Nobody joins the thread: it shares
// ownership of the result, and the last owner frees it.
#pragma once

#include <memory>
#include <string>

namespace outbox {

class Resolver {
  public:
    // Starts to resolve the name in a thread of its own, with all signals blocked.
    explicit Resolver(const std::string& host);
    ~Resolver();
    Resolver(const Resolver&) = delete;
    Resolver& operator=(const Resolver&) = delete;

    // Readable once the name is resolved; -1 if that could not be started.
    int descriptor() const;
    // Valid after that. Returns the addresses separated by commas; if empty, error() has the
    // reason.
    std::string addresses() const;
    std::string error() const;

  private:
    struct LookUp;
    std::shared_ptr<LookUp> look_up_;  // the thread may outlive this object
};

}  // namespace outbox
