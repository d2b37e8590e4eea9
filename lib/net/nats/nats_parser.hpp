// Reads what a NATS server sends: lines that end with CRLF, and messages that follow a line with their
// size.
//
// The server decides how long a line and a message are, so both have a limit; what exceeds it is
// malformed. Nothing is copied: a `NatsInput` points into the bytes it was read from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace outbox {

struct NatsInput {
    enum class Kind {
        incomplete,  // more bytes are needed
        malformed,   // `text` says what is wrong
        info,        // `text` is a JSON object
        message,
        ping,
        pong,
        ok,
        error,  // `text` is what the server says, without quotes
    };
    Kind kind = Kind::incomplete;
    std::size_t size = 0;  // bytes that it takes; 0 if it is incomplete or malformed
    std::string_view text{};
    // Only for a message.
    std::string_view subject{}, reply{}, headers{}, payload{};
    std::uint64_t subscription = 0;
};

struct NatsLimits {
    std::size_t line = 256 * 1024;     // INFO names the servers of the cluster
    std::size_t message = 128 * 1024;  // headers and payload
};

// Reads what begins at the start of `bytes`.
NatsInput read_nats(std::string_view bytes, const NatsLimits& limits) noexcept;

// Returns the code in the first line of a message's headers ("NATS/1.0 503"), or 0.
int nats_status(std::string_view headers) noexcept;
// Returns the text that follows the code, which may be empty.
std::string_view nats_status_text(std::string_view headers) noexcept;
// Returns the value of the first header of this name, or an empty text.
std::string_view nats_header(std::string_view headers, std::string_view name) noexcept;

}  // namespace outbox
