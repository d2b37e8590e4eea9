// Shares the events that a relay has read from the log with the other relays of its database.
//
// Shared memory has windows (log_reader.hpp) and blocks of their events. Both are copies: they hold
// no lock on the log, and may outlive the rows. Old ones are overwritten in turn, whether somebody
// needs them or not. A relay that does not find what it needs, or finds it locked, reads the log by
// itself. It waits for another one only if that one is reading the next block of a large window:
// then it goes on with other tasks for a millisecond, once for each block.
//
// Windows. To share them, relays must look at the same snapshots:
//
//   1. A relay takes its own snapshot, and then agrees (agree_on_window()). If another relay has
//      begun a window at the same snapshot, the relay takes over its end. If not, but another relay
//      has read further, its window ends where that one's last window does. So from then on
//      both go on from the same snapshot. Otherwise its window ends at its own snapshot. Another
//      relay's snapshot may be later than its own, so it then takes a new one for reading.
//   2. It scans the log, and flushes the transactions of the window.
//   3. It says how many events there may be (window_is_read()). From here on other relays may take
//      the window without a transaction or scan (find_window()). They need not flush anything.
//   4. It reads a block of events, and shares it (share_block()). While several others follow, it
//      then leaves the processor to them: otherwise each relay would read on until its time is
//      used up, and the blocks that the others need would be overwritten before it is their turn.
//
// A relay that ends after any of these leaves a window without count or with missing blocks, which
// others read by themselves.
//
// A relay that takes over an end has not seen what has committed since, and nobody will wake it for
// that. So it must look again at once, unless no transaction has completed since that snapshot:
// begin_looking() is followed by a read of the server's count of completed transactions, as a
// snapshot would be. The owner of the window has read the count before it took its snapshot.
//
// After it started, or an operator moved its cursor, a relay reads its first window by itself. So
// it takes only windows that were read after that, and the log has not been emptied or dropped
// between them.
//
// Blocks. A block has all events of its window with after < position <= last. So its readers choose
// by themselves: topics, events in outbox.delivery. Blocks from which their reader left out an
// event, and blocks with an event for one destination only, are not shared.
//
// Locks: one for the windows, held for some comparisons and copies of snapshots; and one for each
// block, held while its events are copied, which is never waited for. The labels of blocks may be
// read without: they are only a hint.
#pragma once

#include "core/event.hpp"
#include "core/snapshot.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// Called from _PG_init when the library is preloaded.
void request_shared_reading();

struct SharedWindow {
    uint64 number = 0;    // 0 if it is not shared
    int64 count = -1;     // of its events, at most; -1 if it is not known yet
    bool is_old = false;  // the relay must look again after it
    int followers = 0;    // other relays that may need it
};

// `completed` is compat::completed_transactions(), read before the snapshot `to` was taken. Changes
// `to` if there is a better end. With `first`, the window of another relay is not taken.
SharedWindow agree_on_window(const Snapshot& from, bool first, uint64 completed, Snapshot& to);
void window_is_read(uint64 number, int64 count);

// Finds a window that begins at `from` and has been scanned, and copies its end to `to`. The number is
// 0 if there is none. `completed` was read after begin_looking().
SharedWindow find_window(const Snapshot& from, uint64 completed, Snapshot& to);

// Shares all events of the window with after < position <= last. Returns false if that was in vain
// for this window so far, because other relays are far behind or do not need them.
bool share_block(uint64 window, int64 after, int64 last, bool end_of_window,
                 std::span<const Event> events);

// Says that a relay reads the events of the window after this position now, or that it does not any
// more. is_begun() is a hint: only one such block is remembered, and its reader may have ended.
void begin_block(uint64 window, int64 after);
void end_block(uint64 window, int64 after);
bool is_begun(uint64 window, int64 after);

// A block that this relay reads. Others cannot overwrite it until give_back().
struct BorrowedBlock {
    int index = -1;  // -1 if there is none
    int64 last = 0;
    bool end_of_window = false;
    std::span<const Event> events;
};

// Finds the block that has the next events of the window after this position.
BorrowedBlock borrow_block(uint64 window, int64 after);
void give_back(const BorrowedBlock& block);

}  // namespace outbox
