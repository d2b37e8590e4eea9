// Makes the configuration of the command line, the environment and relay.toml.
#pragma once

#include "relay/configure/config.hpp"
#include "relay/configure/sources.hpp"

namespace outbox::relay {

// A flag replaces a variable, and a variable replaces a key of relay.toml. If `errors` is not empty
// afterwards, the configuration must not be used.
RelayConfig load_config(const Arguments& arguments, const Environment& environment, Errors& errors);

}  // namespace outbox::relay
