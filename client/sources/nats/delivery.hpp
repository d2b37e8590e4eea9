// Messages of JetStream as deliveries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "inbox/event.hpp"
#include "net/nats/nats_parser.hpp"

namespace inbox::nats {

// Facts about a message that the subject of its acknowledgements contains.
struct Place {
    std::uint64_t delivered = 0;    // how many times, with this one
    std::uint64_t sequence = 0;     // in the stream
    std::uint64_t of_consumer = 0;  // number of the delivery
    std::int64_t stored_at = 0;     // in nanoseconds since the epoch

    // Of a message. Sequences begin again in a stream that is made again.
    std::pair<std::uint64_t, std::int64_t> id() const { return {sequence, stored_at}; }
};

// Returns std::nullopt if the text is not such a subject.
std::optional<Place> place_of(std::string_view subject) noexcept;

// `source` is the subscription. May throw std::bad_alloc.
Delivery delivery_from(const outbox::NatsInput& message, const Place& place,
                       const std::string& source);

}  // namespace inbox::nats
