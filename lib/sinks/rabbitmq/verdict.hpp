// What answers of RabbitMQ mean for an event, its lane, or the destination.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/sink.hpp"

namespace outbox {

// Of a message that was returned. `of_lane`: all events of its lane have its routing key.
EventOutcome verdict_on_return(std::uint16_t code, std::string_view text, std::string_view exchange,
                               std::string_view routing_key, bool of_lane);

// Of a message with a negative confirmation.
EventOutcome verdict_on_nack(std::string_view exchange, std::string_view routing_key, bool of_lane);

// A channel that the server has closed: all messages on it are unconfirmed, and the text may say which one
// it was.
struct ChannelVerdict {
    EventOutcome outcome;
    // If one of these is set, only such messages are to blame.
    std::optional<std::uint64_t> body_size{};
    std::optional<std::string> routing_key{};
};
ChannelVerdict verdict_on_close(std::uint16_t code, std::string_view text, bool of_lane);

}  // namespace outbox
