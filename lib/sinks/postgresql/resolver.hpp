// Looks a host name up without blocking: libpq would do it inside PQconnectPoll(), and a name
// server that hangs would keep the relay from hearing that it should end.
#pragma once

#include <memory>
#include <string>

namespace outbox {

class Resolver {
  public:
    // Starts a look-up in a thread of its own, with all signals blocked.
    explicit Resolver(const std::string& host);
    ~Resolver();
    Resolver(const Resolver&) = delete;
    Resolver& operator=(const Resolver&) = delete;

    // Readable when the look-up is over; -1: it could not be started.
    int descriptor() const;
    // After that: the addresses, separated by commas; empty: `error()` says why.
    std::string addresses() const;
    std::string error() const;

  private:
    struct LookUp;
    std::shared_ptr<LookUp> look_up_;  // the thread may outlive us
};

}  // namespace outbox
