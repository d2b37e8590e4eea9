// Judges answers of RabbitMQ: what they mean for an event, its lane, or the destination.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/sink.hpp"

namespace outbox {

// Judges a message that was returned. `of_lane` is true if all events of the lane have its routing
// key.
EventOutcome verdict_on_return(std::uint16_t code, std::string_view text, std::string_view exchange,
                               std::string_view routing_key, bool of_lane);

// Judges a message with a negative confirmation.
EventOutcome verdict_on_nack(std::string_view exchange, std::string_view routing_key, bool of_lane);

// Judges a channel that the server has closed. All messages on it are unconfirmed, and the text may
// say which one is to blame.
struct ChannelVerdict {
    EventOutcome outcome;
    // If one of these is set, only messages that match it are to blame.
    std::optional<std::uint64_t> body_size{};
    std::optional<std::string> routing_key{};
};
ChannelVerdict verdict_on_close(std::uint16_t code, std::string_view text, bool of_lane);

}  // namespace outbox
