// The ring of segments: enqueues move on to the next when the current one is large or old, and a
// segment is emptied when every destination is done with it and it has been kept for long enough.
//
// No enqueue ever waits for this. Moving on changes a row that enqueues look at; who has not heard
// of it yet goes on with the segment he knows. A segment is emptied under a lock that is not waited
// for: a transaction that has written to it, or reads it, only delays that.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Does what is due. Returns when there will be more, as far as that is known now.
TimestampTz tend_segments();

}  // namespace outbox
