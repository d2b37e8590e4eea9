// Options of a destination that is a web server.
#pragma once

#include <string>

#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct HttpOptions {
    std::string url;
    std::string source;  // the database, in CloudEvents
    EventFormat format = EventFormat::binary;
    std::size_t batch_size = 0;  // in the format `batched`
    TransportOptions transport;
    // At most one way to prove who we are: the token counts.
    std::string token, user, password;
};

HttpOptions http_options(const Destination& destination);

extern const SinkDeclaration http_declaration;

}  // namespace outbox
