// The cursor of a destination: how far it has come, in memory and in its row of outbox.cursor.
#pragma once

#include <optional>

#include "core/snapshot.hpp"
#include "pg.hpp"

namespace outbox {

struct Cursor {
    // Settled: the events of all transactions finished in `done`; and, when there is an `upto`, of
    // the window from `done` to `upto` those at or below `position`. A new Snapshot: nothing yet.
    Snapshot done;
    std::optional<Snapshot> upto;
    std::int64_t position = 0;
    // `done` and `upto` speak of another cluster's transactions. Not to be saved in this state.
    bool foreign = false;
};

// Both in a transaction of begin_work().

// Takes the lease of the destination's cursor, so that no earlier relay can save any more. Without
// a cursor, makes one at the beginning of the log. `server` invalid: the default destination.
// False: the extension or the destination is gone.
bool take_cursor(Oid server, Cursor& cursor);

// Saves what was taken. The commit need not wait for the disk: what is lost in a crash is delivered
// again. False: the cursor is not ours any more; another relay took it, or the destination is gone.
bool save_cursor(const Cursor& cursor);

}  // namespace outbox
