// The connection of a destination, for the sink and for the check.
#pragma once

#include "net/amqp/connection.hpp"
#include "sinks/rabbitmq/options.hpp"

namespace outbox {

inline AmqpConfig amqp_config(const RabbitmqOptions& options) {
    return {.transport = options.transport,
            .host = options.host,
            .port = options.port,
            .tls = options.tls,
            .virtual_host = options.virtual_host,
            .user = options.user,
            .password = options.password,
            .name = options.connection_name};
}

}  // namespace outbox
