// Options of destinations whose endpoints are rows of outbox.endpoint. Each endpoint has its own
// URL.
#pragma once

#include <array>
#include <string>

#include "core/clock.hpp"
#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct EndpointOptions {
    std::string source;  // name of the database, for CloudEvents
    EventFormat format = EventFormat::binary;
    bool pauses_if_gone = true;             // an answer 410 pauses the endpoint
    std::size_t requests_per_endpoint = 4;  // in flight at the same time
    TransportOptions transport;
    Micros retry_base = 0;
    Micros retry_max = 0;
    std::string headers;  // lines "Name: value", for each request
    // The secret of each endpoint is made from these, in their text form. All that are not empty
    // sign each request.
    std::array<std::string, 2> master_secrets;
};

EndpointOptions endpoint_options(const Destination& destination);

extern const SinkDeclaration endpoints_declaration;

}  // namespace outbox
