// Options of a destination that is Redis, or another server with streams that speaks its protocol.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

// An account of a server.
struct RedisUser {
    std::string user, password;
};

struct RedisOptions {
    std::string source;                                      // the database events come from
    std::vector<std::pair<std::string, std::string>> hosts;  // and ports, at first
    bool tls = false;
    std::size_t database = 0;
    RedisUser account;
    std::string sentinel;  // name of the primary; if empty, the hosts are servers with streams
    RedisUser sentinel_account;  // of the Sentinels
    TransportOptions transport;
    TextTemplate stream;
    EventFormat format = EventFormat::attributes;
    bool ids_of_positions = true;
    std::size_t max_length = 0;    // of a stream; 0 if it is not limited
    std::size_t min_replicas = 0;  // replicas that must have an event
    std::size_t batch_size = 0;
    bool receipts = false;
};

RedisOptions redis_options(const Destination& destination);

extern const SinkDeclaration redis_declaration;

}  // namespace outbox
