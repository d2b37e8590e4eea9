// Reads the log window by window.
//
// A window is what is visible in one snapshot (`to`) and was not visible in an earlier one
// (`from`):
//
//     rows of transactions that had not finished in `from` and have finished in `to`,
//     in order of position
//
// A reader never asks for "position > the last one", because a lower position may be committed
// later. Transactions in progress delay only their own events. Sorting by position keeps the order
// of producers that wait for each other (by the lock on the aggregate's row, for example), because
// each one takes its positions while it holds that lock.
//
// A window is scanned once, by the index alone, into a spool of (position, TID). Rows are then
// fetched by TID in any number of short transactions. Only that shows whether a row's
// subtransaction was rolled back.
//
// The TIDs must stay valid until the whole window is read. So the relay sets a bit in
// WorkerSlot::reading for each segment of the window, while the scan still locks that segment, and
// clears all bits in forget_window(). Only the relay writes the bits. The keeper reads them after
// it has locked a segment that it wants to empty (bgworker/keeper/segments.hpp). It cannot rely on
// rows instead: it does not count rolled-back rows, but the spool still holds their TIDs.
//
// sql/pg_outbox/window.sql has the same rule for pull destinations. tests/system/test_windows.py
// compares the two.
#pragma once

#include <vector>

#include "core/event.hpp"
#include "core/relay/cursor.hpp"
#include "core/topic_filter.hpp"
#include "extension/destinations/expressions.hpp"

namespace outbox {

struct LogReader;  // lives as long as the process

LogReader* create_log_reader();
// Forgets the window. The next one may begin anywhere.
void restart_reading(LogReader* reader);

// All of these need a transaction of begin_work(), or one of a session.

// Copies the active snapshot.
void copy_active_snapshot(Snapshot& to);

// Scans the window from `from` to `to`, which is not later than the active snapshot. Returns the
// number of events it may have, or -1 if the log is gone. In a session
// (outbox_internal.read_window()) the caller keeps the segments locked until it has read the
// window.
int64 collect_window(LogReader* reader, const Snapshot& from, const Settled& settled,
                     const Snapshot& to);

// Takes the window that begins at `from` from another relay that has scanned it (shared_reading.hpp),
// and copies its end to `to`. Needs no transaction. Returns the number of events it may have, or -1 if
// there is none. To be called after begin_looking(), and before the transaction of scan_window().
int64 take_window(LogReader* reader, const Snapshot& from, Snapshot& to);

// Does the same as collect_window() from `from` to the active snapshot, or an earlier one with
// `shares`, and copies that to `to`. Also makes sure that the transactions of the window are on
// disk: no event may leave before its transaction is durable. `shares` says whether other relays may
// have the window, too.
int64 scan_window(LogReader* reader, const Snapshot& from, const Settled& settled, bool shares,
                  Snapshot& to);

// To be called when nothing more is read of the window: the keeper may then empty its segments.
void forget_window();

enum class ReadResult { more, end_of_window, log_is_gone };

// Progress of other relays with the next events. `are_reading`: ask again in a moment.
enum class Others { have_not_read, are_reading, have_read };

// Copies the next events of the window to the block, as read_events() does, from what other relays
// have read. Needs no transaction.
Others take_events(LogReader* reader, const TopicFilter& topics,
                   const std::vector<std::int64_t>& recorded, EventBlock& block,
                   ReadResult& result);

// Appends the next events of the window whose topics match to the block, until it is full. Skips
// events that are only for another destination, and those at the positions in `recorded`
// (ascending), which are in outbox.delivery. `expressions`, which have begun, select among the rest and
// change them; nullptr if the destination has none.
ReadResult read_events(LogReader* reader, std::int32_t destination, const TopicFilter& topics,
                       const std::vector<std::int64_t>& recorded, Expressions* expressions,
                       EventBlock& block);

// Returns the position of the last event that was read, whatever destination it is for.
int64 last_position_read(const LogReader* reader);

}  // namespace outbox
