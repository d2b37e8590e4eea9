// Figures of a destination for outbox_internal.relay_report(), which the view outbox.status shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "relay/observe/figures.hpp"

namespace outbox::relay {

struct Report {
    std::int32_t number = 0;
    Micros state_since = 0;     // as the next ones, a time of day
    std::uint64_t read_to = 0;  // the relay has read transactions below this xid
    std::optional<Micros> oldest{};
    const std::string& last_error;
    Micros last_error_at = 0;
    const DestinationFigures& figures;
};

// Appends a JSON object with the columns of outbox.relay_status.
void append_report(std::string& out, const Report& report);

}  // namespace outbox::relay
