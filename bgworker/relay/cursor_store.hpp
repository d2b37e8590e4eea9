// The cursor of a destination: how far it has come, in memory and in its row of outbox.cursor.
#pragma once

#include "core/relay/cursor.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// All in a transaction of begin_sql_work().

// Takes the lease of the destination's cursor, so that no earlier relay can save any more. Without
// a cursor, makes one at the beginning of the log. `server` invalid: the default destination.
// False: the destination is gone, or somebody else is just making cursors: to be tried again.
bool take_cursor(Oid server, Cursor& cursor);

// What an operator did to the cursor since.
struct CursorState {
    bool ours;  // else it was moved, or another relay took it, or it is gone
    bool paused;
};
CursorState look_at_cursor(Oid server);

// Locks the cursor until the transaction ends, which is how a relay and operators keep out of each
// other's way. Never waits: busy means that an operator is in the middle of something, or that the
// row is gone or not ours, which look_at_cursor() tells.
bool lock_cursor();
// The same, but waits for an operator. False: it is not ours any more.
bool wait_for_cursor();

// Saves a locked cursor. The commit need not wait for the disk: what is lost in a crash is
// delivered again.
void save_cursor(const Cursor& cursor);

}  // namespace outbox
