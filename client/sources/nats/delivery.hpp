// Messages of JetStream as deliveries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "inbox/event.hpp"
#include "net/nats/nats_parser.hpp"

namespace inbox::nats {

// Facts about a message that the subject of its acknowledgements contains.
struct Place {
    std::uint64_t delivered = 0;  // how many times, with this one
    std::uint64_t sequence = 0;   // in the stream
    Time stored_at{};
};

// Returns std::nullopt if the text is not such a subject.
std::optional<Place> place_of(std::string_view subject) noexcept;

// `source` is the subscription. May throw std::bad_alloc.
Delivery delivery_from(const outbox::NatsInput& message, const Place& place,
                       const std::string& source);

}  // namespace inbox::nats
