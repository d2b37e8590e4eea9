// The ids that the sink gives to entries. Redis adds an entry only if its id is above all ids that
// the stream has ever had.
//
// The id is made from the position of the event:
//
//   <position>-0        if the position is above the top of the stream
//   <top>-<position>    if an event with a higher position came before, or if the top is above all
//                       positions, because foreign ids are made from a clock
//   <top>-<next>        if this id is still too low
//
// So the first part of an id is never below the position of its event.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "net/redis_stream_id.hpp"
#include "net/resp.hpp"

namespace outbox {

// Returns the id for an event with this position in a stream with this top, or std::nullopt if no
// id is left.
std::optional<StreamId> id_for(std::int64_t position, StreamId top) noexcept;

// State of a stream, as Redis reports it.
struct StreamState {
    StreamId top;  // the highest id that the stream has ever had
    bool empty = true;

    // Parses the answer to XINFO STREAM. Returns std::nullopt if it is malformed.
    static std::optional<StreamState> parse(const RespValue& answer);
};

// The parts of an entry that the sink needs.
struct StreamEntry {
    StreamId id;
    std::string_view event_id;  // points into the answer; empty if the entry is not one of ours

    // Parses an element of the answer to XREVRANGE. Returns std::nullopt if it is malformed.
    static std::optional<StreamEntry> parse(const RespValue& entry);
};

}  // namespace outbox
