// The cursor of a destination: up to where its log is settled.
#pragma once

#include <cstdint>
#include <optional>

#include "core/snapshot.hpp"

namespace outbox {

struct Cursor {
    std::int32_t number = 0;  // of the destination
    // Settled are the events of all transactions finished in `done` and, while there is an `upto`,
    // those of the window from `done` to `upto` at or below `position`. A new Snapshot: nothing yet.
    Snapshot done;
    std::optional<Snapshot> upto;
    std::int64_t position = 0;
    // `done` and `upto` are of another cluster's transactions. Must not be saved in this state.
    bool foreign = false;
};

// The part of a window that was settled before the relay started: after a restart in the middle of
// the window, or with a cursor that came from another cluster, whose transactions do not compare
// with those of this one.
struct Settled {
    bool any = false;
    Snapshot in;                // an event is settled if its transaction had finished here
    std::int64_t position = 0;  // and its position is not above this
};

}  // namespace outbox
