// The ring of segments: enqueues move on to the next when the current one is large or old, and a
// segment is emptied when every destination is done with it and it has been kept for long enough.
//
// No enqueue ever waits for this.
//
// Moving on: the keeper updates outbox.ring and sends a relcache invalidation at commit. A session
// that has not processed it yet goes on writing to the old segment. So a segment that is not current
// may still grow, and readers always read all segments.
//
// Emptying, in this order:
//   1. Ask whether every destination has settled what is in the segment.
//   2. Try to take its AccessExclusiveLock, and come back later if that fails. A session that wrote to
//      the segment holds a lock on it until its transaction ends, so no such transaction is left.
//   3. Take a new snapshot, which sees what those transactions wrote, and ask again.
//   4. See that no relay holds TIDs of the segment: a relay sets its bit in WorkerSlot::reading in the
//      transaction that scans a window, which also locks the segment, and clears it after it has read
//      the last row.
//   5. TRUNCATE, and commit.
//
// Only the keeper of the database does either.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Does what is due. Returns when there will be more, as far as that is known now.
TimestampTz tend_segments();

}  // namespace outbox
