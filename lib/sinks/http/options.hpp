// Options of destinations that are web servers.
#pragma once

#include <array>
#include <string>

#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct HttpOptions {
    std::string url;
    std::string source;  // name of the database, for CloudEvents
    EventFormat format = EventFormat::binary;
    std::size_t batch_size = 0;   // for the format `batched`
    bool pauses_if_gone = false;  // an answer 410 pauses the destination
    TransportOptions transport;
    // At most one of token and user is used: the token, if both are set.
    std::string token, user, password;
    std::string headers;  // lines "Name: value", for each request
    // Secrets and keys of Standard Webhooks, in their text form. All that are not empty sign each
    // request.
    std::array<std::string, 2> signing_secrets, signing_keys;
};

HttpOptions http_options(const Destination& destination);

extern const SinkDeclaration http_declaration;

}  // namespace outbox
