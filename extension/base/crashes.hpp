// Finds the worker whose crash made the server start over, and holds it back with a pause that
// doubles each time. So no database can keep the server in crash recovery.
//
//   a worker crashes          its signal handler marks its slot, then the signal takes its course
//   SIGKILL, from anywhere    marks nothing; the other workers mark their slots when the server
//                             tells them to quit, so that slot is the only one without a mark
//   the server starts over    the postmaster reads the marks in the shared memory that it is about
//                             to drop, and notes them in its own memory, which processes inherit
//   restart_after_crash=off,  the postmaster passes the notes on in a file in the data directory; a
//   or recovery fails         shutdown without a crash leaves no file
// Each mark is written only by its worker, each note only by the postmaster, and children read the
// notes they were born with. So nothing here needs a lock.
//
// The postmaster trusts nothing in the old shared memory. It reads at addresses that it knows, and
// what it reads there only decides about pauses.
#pragma once

#include "extension/base/pg.hpp"
#include "extension/base/worker_identity.hpp"

namespace outbox {

// The crashes of one worker. With WorkerKind::none: the crashes of all workers of a database, so
// that many workers that crash in turn are held back as well.
struct CrashNote {
    WorkerIdentity identity;
    NameData name;
    std::int32_t count;    // in a row; 0 if the note is free
    std::int32_t signal;   // of the last crash
    TimestampTz at;        // of the last crash
    std::int64_t at_work;  // the message that a processor processed; 0 if none
};

// The notes this process was born with; unused ones have count 0.
inline constexpr int max_crash_notes = 64;  // a new note replaces the oldest
const CrashNote* crash_notes();

// The postmaster calls this when there is new shared memory.
void watch_shared_state_for_crashes();

// A worker calls this before it attaches to its slot.
void mark_slot_on_crash();

// Returns until when a worker is held back, because of itself or its database, and the note that
// says why; 0 if it is not held back.
TimestampTz held_back_until(const WorkerIdentity& identity, const CrashNote** why);
// The same for one note.
TimestampTz held_back_until(const CrashNote& note);

// Returns the note of a worker's own crashes; nullptr if the last was long ago.
const CrashNote* crashes_of(const WorkerIdentity& identity);

}  // namespace outbox
