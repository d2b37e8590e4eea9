// The ring of segments. Enqueues move on to the next segment when the current one is large or old.
// A segment is emptied when every destination is done with it and it has been kept for long enough.
//
// No enqueue ever waits for this.
//
// Moving on: the keeper updates outbox.ring and sends a relcache invalidation at commit. A session
// that has not processed it yet goes on writing to the old segment. So a segment that is not
// current may still grow, and readers always read all segments.
//
// Emptying, in this order:
//   1. Ask whether every destination has settled all events of the segment.
//   2. Try to take its AccessExclusiveLock, and come back later if that fails. A session that wrote
//      to the segment locks it until its transaction ends, so no such transaction is left.
//   3. Take a new snapshot, which sees what those transactions wrote, and ask again.
//   4. See that no relay holds TIDs of the segment. A relay sets its bit in WorkerSlot::reading in
//      the transaction that scans a window, before it releases its lock on the segment, and clears
//      it after it has read the last row. So with the lock of step 2 the keeper sees the bit of a
//      relay that has scanned the segment; any other relay will scan an empty segment.
//   5. TRUNCATE, and commit.
//
// Only the keeper of the database moves on or empties a segment.
#pragma once

#include "core/clock.hpp"

namespace outbox {

// Does what is due. Returns when more will be due by steady_now(), as far as that is known now.
Micros tend_segments();

}  // namespace outbox
