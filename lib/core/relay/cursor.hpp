// The cursor of a destination: the point up to which its log is settled.
#pragma once

#include <cstdint>
#include <optional>

#include "core/clock.hpp"
#include "core/snapshot.hpp"

namespace outbox {

struct Cursor {
    std::int32_t number = 0;  // of the destination
    // The events of all transactions that had finished in `done` are settled. If there is an
    // `upto`, so are the events of the window from `done` to `upto` up to `position`. A default
    // Snapshot means that nothing is settled.
    Snapshot done;
    std::optional<Snapshot> upto;
    std::int64_t position = 0;
    // `done` and `upto` refer to transactions of another cluster. A cursor must not be saved like
    // this.
    bool foreign = false;
    // An operator has moved the cursor back: events up to this position are delivered again.
    std::int64_t live_after = 0;
    // Counters of the relays so far, when the cursor was read. A relay goes on from them.
    std::uint64_t published = 0;
    std::uint64_t failures = 0;
    // Since when the destination failed for them, Unix time; 0 if it worked.
    Micros failing_since = 0;
    // Calls of outbox.resume() that the relay has followed.
    std::int64_t resumed = 0;
};

// The part of a window that was settled before the relay started. It exists after a restart in the
// middle of a window, and for a cursor from another cluster, whose transactions cannot be compared
// with those of this one.
struct Settled {
    bool any = false;
    Snapshot in;                // an event is settled if its transaction had finished here
    std::int64_t position = 0;  // and its position is at most this
};

}  // namespace outbox
