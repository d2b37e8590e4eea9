// Writes events into the log, in the transaction at hand.
//
// The rows go straight through the table access method: no SPI, no plan, no trigger, and no
// privilege on the log is needed. What a role may enqueue, callers check (producer.hpp).
#pragma once

#include "extension/base/pg.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// The log, opened for the length of one call. Of several rows, those that fit are written together.
struct LogWriter {
    Relation segment;
    Relation index;  // the only one it has,
    IndexInfo* index_info;
    ResultRelInfo* target;  // or, where somebody has added some, all of them, with their executor
    EState* executor;
    FullTransactionId xid;
    CommandId command;
    BulkInsertState bulk;
    MemoryContext memory;  // what the values of rows at hand lie in; reset when they are written
    TupleTableSlot** slots;
    int capacity;
    int filled;
    bool position_is_version;  // of rows that have none
};

// Raises an error where events cannot be enqueued: on a standby, in a parallel worker, ...
// To be called before anything is done that counts on the form of the log.
void check_may_enqueue();

LogWriter open_log(int rows_at_once = 1);

// Where the next row goes: LogColumns values and nulls, of which fill_event() fills all but
// position and xid. What the values point to has to live in writer.memory; with one row at once it
// may as well be the current context.
TupleTableSlot* next_row(LogWriter& writer);

// Gives the row its place in the order of events. True: rows were written, and writer.memory is
// empty.
bool write_row(LogWriter& writer);

// Writes what is left.
void close_log(LogWriter& writer);

}  // namespace outbox
