// Collects the events of the rows that one statement changes, and writes them together.
//
// An event has its position as soon as it is collected, so events of a key stay in order. It is
// written by the end of the statement, in the subtransaction of its row, and before a query that
// reads the log or a utility statement could miss it. The exception is a trigger that reads the log
// in a block with EXCEPTION: the block is a subtransaction, with which the events would be lost.
#pragma once

#include "extension/log/log_writer.hpp"

namespace outbox {

// Returns the writer for an event of a row trigger. Its rows are written later: do not close it.
// Returns nullptr where nothing would write them. Such an event has to be written at once.
LogWriter* writer_of_statement();

}  // namespace outbox
