// Messages of RabbitMQ as deliveries.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "inbox/event.hpp"
#include "net/amqp/frames.hpp"

namespace inbox::rabbitmq {

// A message without its body.
struct Envelope {
    std::uint64_t tag = 0;  // of the delivery, in its channel
    bool redelivered = false;
    std::string routing_key{};
    // These come from its properties.
    std::map<std::string, std::string> attributes{};
    std::string message_id{}, app_id{}, type{};
    std::optional<Time> stamp{};           // set by the broker or the sender
    std::optional<std::int64_t> offset{};  // in its stream
    std::int64_t failed_deliveries = 0;    // as a quorum queue counts them
    std::size_t size = 0;
};

struct Message {
    Envelope envelope;
    std::string body{};
};

// These functions may throw std::bad_alloc.
void take_properties(Envelope& envelope, const amqp_basic_properties_t& properties);

// `source` is the subscription. A message of a queue that has no id gets `unnamed` as its id.
// `counted_ids_are_unique` is as in RabbitmqOptions.
Delivery delivery_from(Message message, const std::string& source, const std::string& unnamed,
                       Time now, bool counted_ids_are_unique);

}  // namespace inbox::rabbitmq
