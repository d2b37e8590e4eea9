#include "sinks/rabbitmq/verdict.hpp"

#include "core/text.hpp"
#include "net/amqp/frames.hpp"

namespace outbox {

static constexpr std::uint16_t no_route = 312;

static std::string place_of(std::string_view exchange, std::string_view routing_key) {
    const std::string key = '"' + printable(routing_key, max_short_string) + '"';
    return exchange.empty()
               ? "queue " + key
               : "exchange \"" + printable(exchange, max_short_string) + "\", routing key " + key;
}

EventOutcome verdict_on_return(std::uint16_t code, std::string_view text, std::string_view exchange,
                               std::string_view routing_key, bool of_lane) {
    std::string error =
        place_of(exchange, routing_key) + ": " + std::to_string(code) + ' ' + printable(text);
    if (code != no_route)
        return {Fate::failed, std::move(error)};
    error += exchange.empty() ? " (it does not exist)" : " (no queue is bound for it)";
    // A binding may be added later.
    return of_lane ? EventOutcome{Fate::unavailable, std::move(error), false, Scope::lane}
                   : EventOutcome{Fate::refused, std::move(error)};
}

EventOutcome verdict_on_nack(std::string_view exchange, std::string_view routing_key,
                             bool of_lane) {
    std::string error = place_of(exchange, routing_key) +
                        ": the server did not take the message (basic.nack); is a queue full?";
    return of_lane ? EventOutcome{Fate::throttled, std::move(error), false, Scope::lane}
                   : EventOutcome{Fate::failed, std::move(error)};
}

// Returns the text between `before` and `after`, if both are there.
static std::optional<std::string_view> between(std::string_view text, std::string_view before,
                                               std::string_view after) {
    const std::size_t at = text.find(before);
    if (at == std::string_view::npos)
        return std::nullopt;
    text.remove_prefix(at + before.size());
    const std::size_t end = text.find(after);
    return end == std::string_view::npos ? std::nullopt : std::optional(text.substr(0, end));
}

ChannelVerdict verdict_on_close(std::uint16_t code, std::string_view text, bool of_lane) {
    std::string error = std::to_string(code) + ' ' + printable(text);
    switch (code) {
        case AMQP_NOT_FOUND:
            return {{Fate::unavailable, std::move(error), false, Scope::lane}};
        case AMQP_ACCESS_REFUSED:
            // Permissions for topics concern routing keys, all others concern exchanges.
            if (const auto key = between(text, "access to topic '", "' in exchange"))
                return {of_lane
                            ? EventOutcome{Fate::unavailable, std::move(error), false, Scope::lane}
                            : EventOutcome{Fate::refused, std::move(error)},
                        std::nullopt, std::string(*key)};
            return {{Fate::unavailable, std::move(error), false, Scope::lane}};
        case AMQP_RESOURCE_ERROR:  // no memory or disk
            return {{Fate::throttled, std::move(error), false, Scope::lane}};
        case AMQP_PRECONDITION_FAILED:
            if (const auto digits = between(text, "message size ", " "))
                if (const std::optional<std::int64_t> size = parse_integer(*digits);
                    size && *size > 0)
                    return {{Fate::refused, std::move(error), true},
                            static_cast<std::uint64_t>(*size)};
            return {{Fate::failed, std::move(error)}};
        default:
            return {{Fate::failed, std::move(error)}};
    }
}

}  // namespace outbox
