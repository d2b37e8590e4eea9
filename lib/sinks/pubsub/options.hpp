// Options of Google Pub/Sub destinations.
#pragma once

#include <string>

#include "cloud/google/google_options.hpp"
#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct PubsubOptions {
    std::string source;  // the database that events come from
    std::string project;
    std::string service_url;  // address of Pub/Sub or of an emulator
    bool emulated = false;    // true for an emulator, which needs no credentials
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
