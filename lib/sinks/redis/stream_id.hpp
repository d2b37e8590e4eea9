// The id of an entry of a stream: "<ms>-<seq>". An entry can only be added behind the highest id that the
// stream has ever had.
//
// Entries get ids that follow from the positions of their events, so that Redis refuses a repetition, and
// the sink can ask whether an event is there:
//
//   <position>-0        an event whose position is above the top of the stream, which is the usual case
//   <top>-<position>    an event that comes late: one with a higher position is in the stream. Also any
//                       event if the stream has ids above all positions, as those made from a clock are
//   <top>-<next>        a late event that even this id is too low for
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
    // std::nullopt if this is the highest id.
    std::optional<StreamId> next() const noexcept;
};

// Returns the id for an event with this position in a stream with this top; std::nullopt if there is
// none.
std::optional<StreamId> id_for(std::int64_t position, StreamId top) noexcept;

// What Redis said about a stream when the sink looked at it.
struct StreamState {
    StreamId first;  // not above the id of its first entry
    StreamId top;    // the highest id that it has had
    bool empty = true;

    // Of the answer to XINFO STREAM; std::nullopt if it makes no sense.
    static std::optional<StreamState> parse(const RespValue& answer);

    // Calls take(id) for each id at which an event with this position may be in the stream, if it was
    // sent before the sink looked.
    template <class Take>
    void for_each_place(std::int64_t position, Take take) const {
        const std::uint64_t number = static_cast<std::uint64_t>(position);
        const StreamId usual{number, 0}, late{top.ms, number};
        for (const StreamId& id : {usual, late})
            if (!empty && first <= id && id <= top)
                take(id);
    }
};

// Whether the answer to XRANGE is an entry of this event.
bool is_entry_of(const RespValue& answer, std::string_view event_id);

}  // namespace outbox
