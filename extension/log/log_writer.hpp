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
    int64 position;  // of the last row
    CommandId command;
    BulkInsertState bulk;
    MemoryContext memory;  // reset when rows are written, if there is room for several
    TupleTableSlot** slots;
    int capacity;
    int filled;
    size_t size;  // bytes of the rows not written yet
    bool is_writing;
    bool position_is_version;  // for rows without a version
};

// Raises an error where events cannot be enqueued, such as on a standby or in a parallel worker.
// Call it before anything that relies on the form of the log.
void check_may_enqueue();

LogWriter open_log(int rows_at_once = 1);

// For many events: keeps the page that rows are added to, and does not crowd the buffers of others.
LogWriter open_log_for_many(int rows_at_once);

// Returns whether enqueues still go to the segment that is open.
bool is_current(const LogWriter& writer);

// Returns the slot for the next row: LogColumns values and nulls, of which fill_event() fills all
// but position and xid. Memory that the values point to must live until write_row().
TupleTableSlot* next_row(LogWriter& writer);

// Gives the row its position in the log, and copies it. Returns true if rows were written, so that
// writer.memory is empty.
bool write_row(LogWriter& writer);

// Writes the rows that are left.
void write_rows(LogWriter& writer);

// Does the same, and closes the log.
void close_log(LogWriter& writer);

}  // namespace outbox
