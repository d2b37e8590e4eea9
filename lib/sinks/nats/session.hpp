// Makes the configuration of the connection from the options, for the sink and the check.
#pragma once

#include "net/nats/nats_connection.hpp"
#include "sinks/nats/options.hpp"

namespace outbox {

// Returns an error if the credentials cannot be used.
Result<NatsConfig> nats_config(const NatsOptions& options);

}  // namespace outbox
