// Opens one connection, in a thread of its own: libpq resolves host names and computes passwords
// without a limit of time, and meanwhile the relay must renew its leases. What a server sends is
// limited (core/libpq_limits.hpp).
//
// Protocol. Until the descriptor is readable, only the thread uses the connection. At the end it
// changes `state` to has_ended, and then signals the descriptor. An owner that cannot wait changes
// it to is_given_up. Both changes are exchanges, so exactly one of the two comes second, and that
// one gets the connection: the thread frees it, or the owner keeps it.
#pragma once

#include <libpq-fe.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "relay/configure/connection.hpp"

namespace outbox::relay {

class Connector {
  public:
    explicit Connector(ConnectionParameters parameters);
    ~Connector();
    Connector(const Connector&) = delete;
    Connector& operator=(const Connector&) = delete;

    // Becomes readable when the attempt has ended.
    int descriptor() const noexcept;
    bool has_ended() const noexcept;
    // Gives the connection to the caller, once the attempt has ended; it may have failed.
    LibpqConnection take() noexcept;

    // Attempts that were given up and still run. A process that ends meanwhile must not run exit
    // handlers, which free what the threads use.
    static int running() noexcept;

  private:
    struct Shared;
    std::shared_ptr<Shared> shared_;  // the thread may outlive this object
};

}  // namespace outbox::relay
