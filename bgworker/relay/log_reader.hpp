// Reads the log window by window.
//
// A window is what is visible in one snapshot (`to`) and was not in an earlier one (`from`):
//
//     rows of transactions that had not finished in `from` and have finished in `to`,
//     in order of position
//
// Never "position > the last one": a lower position may be committed later. Transactions in
// progress delay their own events only. Sorting by position keeps the order of producers that wait
// for each other (by the lock on the aggregate's row, say), because each takes its positions while
// it holds that lock.
//
// A window is scanned once, through the index alone, into a spool of (position, place); rows are
// then fetched by place in as many short transactions as it takes. Whether a row's subtransaction
// was rolled back shows only then. Until all of a window is read the keeper leaves its segments alone
// (bgworker/keeper/segments.hpp): the keeper does not count rolled-back rows, but the spool still holds
// their TIDs.
//
// The same rule stands in sql/pg_outbox/window.sql, for pull destinations.
// tests/system/test_windows.py compares the two.
#pragma once

#include <vector>

#include "core/event.hpp"
#include "core/relay/cursor.hpp"
#include "core/topic_filter.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

struct LogReader;  // lives as long as the process

LogReader* create_log_reader();
// The next window may begin anywhere.
void restart_reading(LogReader* reader);

// All of these in a transaction of begin_work(), or in that of a session.

// The active snapshot.
void copy_active_snapshot(Snapshot& to);

// Scans the window from `from` to `to`, which is not later than the active snapshot. Returns the
// number of events it may have, or -1 if the log is gone. In a session (outbox_internal.read_window()) the
// caller keeps the segments locked until it has read the window.
int64 collect_window(LogReader* reader, const Snapshot& from, const Settled& settled,
                     const Snapshot& to);

// The same from `from` to the active snapshot, of which `to` becomes a copy. Also makes sure
// that its transactions are on disk: an event must not outrun the durability of its transaction.
// Returns how many events it may have, or -1: the log is gone.
int64 scan_window(LogReader* reader, const Snapshot& from, const Settled& settled, Snapshot& to);

// Nothing more is read of the window.
void forget_window();

enum class ReadResult { more, end_of_window, log_is_gone };

// Appends the next events of the window whose topics match to the block, until it is full. Skips
// those that are for another destination only, and those at the positions in `recorded`
// (ascending): they stand in outbox.delivery.
ReadResult read_events(LogReader* reader, std::int32_t destination, const TopicFilter& topics,
                       const std::vector<std::int64_t>& recorded, EventBlock& block);

// Of the last event that was looked at, whomever it is for.
int64 last_position_read(const LogReader* reader);

}  // namespace outbox
