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
    // std::nullopt if this is the highest id, or the lowest one.
    std::optional<StreamId> next() const noexcept;
    std::optional<StreamId> previous() const noexcept;
};

// True for ids that were made from a clock, as Redis does, and not from positions: those of a clock are
// above this number since 2004, and a database has had 10^12 events before positions are.
bool is_of_clock(std::uint64_t ms) noexcept;

}  // namespace outbox
