// Takes the cursor of a destination, in its row of outbox.cursor. All else that a relay writes goes
// through calls (core/relay/calls.hpp).
#pragma once

#include "core/relay/calls.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// All functions need a transaction of begin_sql_work().

// Takes the lease of the destination's cursor, so that an earlier relay can save no more. Creates a
// cursor at the beginning of the log if there is none. An invalid `server` means the default
// destination. Returns false if the destination is gone, or if another session is creating cursors
// now: try again.
bool take_cursor(Oid server, Cursor& cursor, calls::Held& held);

// Locks the tables that a transaction is going to write, before it reads them. DDL locks a table before its
// indexes, and would deadlock with a transaction that reads an index and locks the table for writing later.
void lock_tables();

// Locks the cursor until the transaction ends, so that a relay and operators do not change it at
// the same time. Waits for an operator. Returns false if the cursor is not ours any more.
bool wait_for_cursor(const calls::Held& held);

}  // namespace outbox
