// Captured tables: the configuration of outbox.capture(), and events of their rows.
#pragma once

#include "extension/base/pg.hpp"
#include "extension/log/log_writer.hpp"

namespace outbox {

struct Capture;  // how rows of one table become events

// Returns the capture of the table itself, or of the nearest table that it is a partition or child
// of; nullptr if it is not captured. Raises an error if the capture no longer fits the table. The
// result is valid until the transaction ends.
const Capture* find_capture(Relation table);

// Raises an error if code that belongs to the table and to the capture cannot run as one role.
void check_owners(const Capture& capture, Relation table);
// Returns the role that this code runs as.
Oid role_of_code(const Capture& capture);

// Adds an event with all captured columns of the row, with the event type for snapshots and the
// header `snapshot`. `only_to` is the number of the one destination that it is for, or 0 for all.
// Returns false if the condition of the capture excludes the row. The row must belong to the table
// for which find_capture() was called.
bool write_snapshot(LogWriter& writer, const Capture& capture, TupleTableSlot* row, int32 only_to);

}  // namespace outbox
