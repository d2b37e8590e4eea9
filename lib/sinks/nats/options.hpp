// Options of a destination that is NATS JetStream.
#pragma once

#include <string>

#include "core/destination.hpp"
#include "net/nats/nats_login.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct NatsOptions {
    std::string source;                                      // the database events come from
    std::vector<std::pair<std::string, std::string>> hosts;  // and ports
    bool tls = false;
    bool tls_first = false;
    TransportOptions transport;
    NatsLoginTexts login;
    TextTemplate subject;
    bool may_use_dollar = false;  // subjects of a bucket: the option says so
    TextTemplate stream;          // empty: any
    std::string sequence_header;  // empty: none
    std::string inbox_prefix;
    EventFormat format = EventFormat::attributes;
    std::size_t batch_size = 0;
    bool receipts = false;
};

NatsOptions nats_options(const Destination& destination);

extern const SinkDeclaration nats_declaration;

}  // namespace outbox
