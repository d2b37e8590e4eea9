// Errors of what took too long: they name the limit, and the option that sets it.
#pragma once

#include <string>

#include "core/clock.hpp"

namespace outbox {

// Writes a duration as an option takes it: "2s", "1500ms", "1min".
inline std::string duration_text(Micros duration) {
    const Micros ms = duration / 1000;
    if (ms >= 60'000 && ms % 60'000 == 0)
        return std::to_string(ms / 60'000) + "min";
    return ms >= 1000 && ms % 1000 == 0 ? std::to_string(ms / 1000) + "s"
                                        : std::to_string(ms) + "ms";
}

inline std::string no_answer_within(Micros timeout) {
    return "no answer within " + duration_text(timeout) + " (request_timeout)";
}

inline std::string no_connection_within(Micros timeout) {
    return "no connection within " + duration_text(timeout) + " (connect_timeout)";
}

}  // namespace outbox
