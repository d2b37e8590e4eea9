// Which of our workers made the server start over, so that one that does so again and again is held
// back, with a pause that doubles each time, and no database can keep the server in crash recovery.
//
//   a worker crashes          its signal handler marks its slot; then the signal takes its course
//   SIGKILL, from anybody     marks nothing: that slot is the only one without a mark, for all
//                             other workers mark theirs when the server tells them to quit
//   the server starts over    the postmaster reads the marks in the shared memory that it is about
//                             to drop, and notes them in memory of its own; all processes that it
//                             starts from then on are born with the notes
//   restart_after_crash=off,  the notes go by way of a file in the data directory; a server that is
//   or it cannot recover      shut down without a crash starts with no notes
//
// Of the old shared memory the postmaster believes nothing: it reads at addresses it knows, and
// what it reads there decides over nothing but pauses.
#pragma once

#include "extension/base/pg.hpp"
#include "extension/base/worker_identity.hpp"

namespace outbox {

// Of one worker; with WorkerKind::none of all in a database together, so that many workers that
// take turns are held back as well.
struct CrashNote {
    WorkerIdentity identity;
    NameData name;
    std::int32_t count;   // in a row; 0: the note is free
    std::int32_t signal;  // of the last one
    TimestampTz at;       // the last one
};

// The notes this process was born with; unused ones have count 0.
inline constexpr int max_crash_notes = 64;  // the oldest makes room
const CrashNote* crash_notes();

// By the postmaster, when there is new shared memory.
void watch_shared_state_for_crashes();

// By a worker, before it attaches to its slot.
void mark_slot_on_crash();

// Whether a worker is held back, because of itself or its database: until when, and the note that
// says why. 0: it is not.
TimestampTz held_back_until(const WorkerIdentity& identity, const CrashNote** why);
// The same for one note.
TimestampTz held_back_until(const CrashNote& note);

}  // namespace outbox
