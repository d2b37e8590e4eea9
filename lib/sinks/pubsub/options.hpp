// Options of a destination that is Google Pub/Sub.
#pragma once

#include <string>

#include "cloud/google/google_options.hpp"
#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct PubsubOptions {
    std::string source;  // the database events come from
    std::string project;
    std::string service_url;  // where Pub/Sub is
    bool emulated = false;    // that is an emulator, which wants no credentials
    TextTemplate topic;
    bool create_topics = false;
    bool receipts = false;
    EventFormat format = EventFormat::attributes;
    std::size_t batch_size = 0;
    TransportOptions transport;
    GoogleOptions google;
};

PubsubOptions pubsub_options(const Destination& destination);

extern const SinkDeclaration pubsub_declaration;

}  // namespace outbox
