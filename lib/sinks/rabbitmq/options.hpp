// Options of a destination that is RabbitMQ, or another server that speaks AMQP 0-9-1.
#pragma once

#include <string>

#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct RabbitmqOptions {
    std::string source;  // the database events come from
    TransportOptions transport;
    std::string host, port;
    bool tls = false;
    std::string virtual_host;
    std::string user, password;  // if the user is empty, the client's certificate names it
    std::string connection_name;
    TextTemplate exchange;  // if empty, the default exchange
    TextTemplate routing_key;
    // All events of a lane have the same routing key, because it has no part that differs by event.
    bool lane_has_routing_key = false;
    EventFormat format = EventFormat::attributes;
    std::size_t batch_size = 0;
    std::size_t max_message_size = 0;
};

RabbitmqOptions rabbitmq_options(const Destination& destination);

extern const SinkDeclaration rabbitmq_declaration;

}  // namespace outbox
