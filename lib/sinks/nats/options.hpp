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
    std::vector<std::pair<std::string, std::string>> hosts;  // with their ports
    bool tls = false;
    bool tls_first = false;
    TransportOptions transport;
    NatsLoginTexts login;
    TextTemplate subject;
    bool may_use_dollar = false;  // the option names subjects of a bucket, which begin with "$"
    TextTemplate stream;          // any stream if empty
    std::string sequence_header;  // not used if empty
    std::string inbox_prefix;
    EventFormat format = EventFormat::attributes;
    std::size_t batch_size = 0;
    bool receipts = false;
};

NatsOptions nats_options(const Destination& destination);

extern const SinkDeclaration nats_declaration;

}  // namespace outbox
