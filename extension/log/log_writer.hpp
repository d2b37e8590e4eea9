// Writes events into the log, in the current transaction.
//
// The rows go straight through the table access method: without SPI, a plan or a trigger, and
// without privileges on the log. Callers check what a role may enqueue (producer.hpp).
#pragma once

#include "extension/base/pg.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// The log, opened for one call. If several rows are added, they are written together in groups.
struct LogWriter {
    Relation segment;
    Relation index;  // the only index of the segment,
    IndexInfo* index_info;
    ResultRelInfo* target;  // or all of them with an executor, if somebody has added some
    EState* executor;
    FullTransactionId xid;
    CommandId command;
    BulkInsertState bulk;
    MemoryContext memory;  // for values of rows not written yet; reset when they are
    TupleTableSlot** slots;
    int capacity;
    int filled;
    bool position_is_version;  // for rows without a version
};

// Raises an error where events cannot be enqueued, such as on a standby or in a parallel worker.
// Call it before anything that relies on the form of the log.
void check_may_enqueue();

LogWriter open_log(int rows_at_once = 1);

// Returns the slot for the next row: LogColumns values and nulls, of which fill_event() fills all
// but position and xid. What the values point to has to live in writer.memory, or with one row at a
// time in the current context.
TupleTableSlot* next_row(LogWriter& writer);

// Gives the row its position in the log. Returns true if rows were written, so that writer.memory
// is empty.
bool write_row(LogWriter& writer);

// Writes the remaining rows.
void close_log(LogWriter& writer);

}  // namespace outbox
