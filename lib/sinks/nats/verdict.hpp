// Judges the answer to a published message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/sink.hpp"
#include "net/nats/nats_parser.hpp"

namespace outbox {

struct NatsVerdict {
    EventOutcome outcome{};
    // Where the message is, if it is confirmed.
    std::string_view stream{};
    std::uint64_t sequence = 0;
};

// `subject` is where the message was published to, and `expected` the sequence that it demanded, if
// any. The views point into the answer. May throw std::bad_alloc.
NatsVerdict verdict_of(const NatsInput& answer, std::string_view subject,
                       std::optional<std::uint64_t> expected);

}  // namespace outbox
