// The texts that the HTTP server returns.
#pragma once

#include <string>
#include <string_view>

#include "core/clock.hpp"
#include "relay/observe/figures.hpp"

namespace outbox::relay {

struct PageContext {
    std::string_view name;     // of the process
    std::string_view version;  // of the program
    Micros started_at = 0;     // these two are of the same clock as Figures::beat()
    Micros now = 0;
    Micros last_beat = 0;
    std::uint64_t dropped_log_lines = 0;
};

// Why the process is not ready, or an empty string: a line for each reason.
std::string why_not_ready(const ProcessFigures& figures);

// OpenMetrics 1.0.0. Figures of destinations have the names of outbox.metrics().
std::string metrics_page(const ProcessFigures& figures, const PageContext& context);

// A JSON object.
std::string status_page(const ProcessFigures& figures, const PageContext& context);

}  // namespace outbox::relay
