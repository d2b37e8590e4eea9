// The id of an entry of a stream of Redis: "<ms>-<seq>".
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outbox {

struct StreamId {
    std::uint64_t ms = 0;
    std::uint64_t seq = 0;

    auto operator<=>(const StreamId&) const = default;

    static std::optional<StreamId> parse(std::string_view text) noexcept;
    void append_to(std::string& out) const;
    std::string text() const;
    // Returns std::nullopt if this is the highest id, or for previous() the lowest one.
    std::optional<StreamId> next() const noexcept;
    std::optional<StreamId> previous() const noexcept;
};

// Returns true for ids that Redis makes from its clock, and not from positions. Since 2004 a clock
// is above this number, and positions are above it only after 10^12 events.
bool is_of_clock(std::uint64_t ms) noexcept;

}  // namespace outbox
