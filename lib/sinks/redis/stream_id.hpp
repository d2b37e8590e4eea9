// The id of an entry of a stream: "<ms>-<seq>". An entry can only be added behind the highest id that the
// stream has ever had.
//
// Entries get ids that follow from the positions of their events:
//
//   <position>-0        an event whose position is above the top of the stream
//   <top>-<position>    an event that comes after one with a higher position. Also any event if the
//                       stream has ids above all positions, as those made from a clock are
//   <top>-<next>        such an event if even this id is too low
//
// So the first part of an id is never below the position of its event.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/event.hpp"
#include "net/resp.hpp"

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

// Returns the id for an event with this position in a stream with this top; std::nullopt if there is
// none.
std::optional<StreamId> id_for(std::int64_t position, StreamId top) noexcept;

// True for ids that were made from a clock, as Redis does, and not from positions: those of a clock are
// above this number since 2004, and a database has had 10^12 events before positions are.
bool is_of_clock(std::uint64_t ms) noexcept;

// What Redis says about a stream.
struct StreamState {
    StreamId top;  // the highest id that it has had
    bool empty = true;

    // Of the answer to XINFO STREAM; std::nullopt if it makes no sense.
    static std::optional<StreamState> parse(const RespValue& answer);
};

// An entry, as far as it matters here.
struct StreamEntry {
    StreamId id;
    std::string_view event_id;  // empty if it is not an event of ours; in the answer

    // Of an element of the answer to XRANGE; std::nullopt if it makes no sense.
    static std::optional<StreamEntry> parse(const RespValue& entry);
};

}  // namespace outbox
