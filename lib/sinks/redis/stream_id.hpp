// The ids that the sink gives to entries. An entry can only be added behind the highest id that the stream
// has ever had.
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

#include <cstdint>
#include <optional>
#include <string_view>

#include "net/redis_stream_id.hpp"
#include "net/resp.hpp"

namespace outbox {

// Returns the id for an event with this position in a stream with this top; std::nullopt if there is
// none.
std::optional<StreamId> id_for(std::int64_t position, StreamId top) noexcept;

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
