// Keeps the cursor of a destination in its row of outbox.cursor.
#pragma once

#include <string_view>

#include "bgworker/relay/spi_call.hpp"
#include "core/relay/relay.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// All functions need a transaction of begin_sql_work().

// Takes the lease of the destination's cursor, so that an earlier relay can save no more. Creates a
// cursor at the beginning of the log if there is none. An invalid `server` means the default
// destination. Returns false if the destination is gone, or if another session is creating cursors
// now: try again.
bool take_cursor(Oid server, Cursor& cursor);

// Returns the arguments that functions of relay.sql begin with: the number of the destination, and the
// token under which this relay writes.
Arguments my_lease();

// State of the cursor, which an operator may have changed.
struct CursorState {
    bool ours;  // false if it was moved, taken by another relay, or dropped
    bool paused;
    int64 resumed;  // as Cursor::resumed
};
CursorState look_at_cursor();

// Locks the tables that a transaction is going to write, before it reads them. DDL locks a table before its
// indexes, and would deadlock with a transaction that reads an index and locks the table for writing later.
void lock_tables();

// Locks the cursor until the transaction ends, so that a relay and operators do not change it at
// the same time. Never waits for an operator.
CallOutcome lock_cursor();
// Waits for an operator. Returns false if the cursor is not ours any more.
bool wait_for_cursor();

// Locks the cursor and pauses the destination until an operator resumes it.
CallOutcome pause_destination(std::string_view why);

// Locks the cursor and saves it, unless Relay::may_save_cursor() forbids, with its counters, and
// receipts. Removes transactions that it has passed.
CallOutcome save_progress(const Relay& relay);

}  // namespace outbox
