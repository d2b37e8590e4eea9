// outbox-relay --check: tests the databases and their destinations, without sending an event.
#pragma once

#include "relay/configure/config.hpp"

namespace outbox::relay {

// Prints a line for each finding on standard output. Returns whether all is well. It waits for
// servers, so it must not be called while destinations are served.
bool check_everything(const RelayConfig& config);

}  // namespace outbox::relay
