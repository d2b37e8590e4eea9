// Options of a destination that is a broker of MQTT 5.
#pragma once

#include <cstdint>
#include <string>

#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct MqttOptions {
    std::string source;  // the database events come from
    std::string host, port;
    bool tls = false;
    TransportOptions transport;
    std::string client_id;
    std::string user, password;  // empty if there are none
    TextTemplate topic;
    EventFormat format = EventFormat::attributes;
    int qos = 1;
    bool retain = false;
    std::uint32_t message_expiry = 0;  // seconds; 0 if messages do not expire
    bool needs_subscribers = false;
    std::uint16_t keep_alive = 60;  // seconds
    std::size_t batch_size = 0;
};

MqttOptions mqtt_options(const Destination& destination);

extern const SinkDeclaration mqtt_declaration;

}  // namespace outbox
