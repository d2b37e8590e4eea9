// Captured tables: what outbox.capture() says about a table, and events made of its rows.
#pragma once

#include "extension/base/pg.hpp"
#include "extension/log/log_writer.hpp"

namespace outbox {

struct Capture;  // how rows of one table become events

// That of the table itself, or of the nearest table it is a partition or child of; nullptr: it is
// not captured. Raises an error if the capture does not fit the table any more. Good until the end
// of the transaction.
const Capture* find_capture(Relation table);

// The table outbox.captured. Raises an error if it was renamed.
Oid find_captured_table();

// Raises an error if code that belongs to the table and to the capture cannot run as one role.
void check_owners(const Capture& capture, Relation table);
// The role it runs as.
Oid role_of_code(const Capture& capture);

// Adds an event with all captured columns of the row, of the type for snapshots and with the header
// `snapshot`; `only_to` is the number of the one destination it is for, 0: all. False: the
// condition of the capture excludes the row. The row is one of the table that find_capture() was
// asked about.
bool write_snapshot(LogWriter& writer, const Capture& capture, TupleTableSlot* row, int32 only_to);

}  // namespace outbox
