// What the background workers of pg_outbox have in common: becoming one, looking after one that was
// started, a transaction.
#pragma once

#include "extension/base/pg.hpp"
#include "extension/base/shared_state.hpp"

namespace outbox {

// ---- looking after workers --------------------------------------------------------------------

// A worker that its parent wants to live. It is started again when it ended, after a pause that
// grows as long as it does not stay alive. A change may be what it needed, and ends the pause; but
// anybody can make changes, so starts are also limited in number (`paid_until`).
struct Child {
    int slot;  // -1: not running as far as we started it
    std::uint32_t ticket;
    BackgroundWorkerHandle* handle;
    TimestampTz started_at;
    TimestampTz not_before;
    int pause;   // ms
    int deaths;  // in a row, of a worker that had not lived for long
    TimestampTz paid_until;
    TimestampTz held_back_until;  // of the last time the log said so
    bool failed;                  // it ended with an error; for its parent, which clears this
    bool absent;                  // the shared state says that it does not live
};

void init_child(Child* child);

// Takes note of its end. Returns whether it lives.
bool child_lives(Child* child);

// Starts it when it does not live, also by the hand of an earlier parent, and is not to be waited
// for: because it has crashed, or ends again and again. What cannot be started because there is no
// room, or its account has no more, is tried again later. Returns the milliseconds after which it
// should be called again; -1: no need.
long start_child(Child* child, const WorkerIdentity& identity, const char* name, Oid account);

// It is not wanted any more.
void forget_child(Child* child, const WorkerIdentity& identity);

// The shorter of two timeouts in milliseconds, where -1 is none.
long shorter_timeout(long a, long b);

// ---- being one ----------------------------------------------------------------------------------

// At the beginning of a worker's main function: signals, slot, database. It runs as the role of its
// slot, or without one as the bootstrap superuser, then with a safe search_path and the server's
// own defaults for transactions.
void become_worker(Datum argument, WakeTarget wake_target);
// One that nobody looks after, as the bootstrap superuser.
void become_worker_without_slot(Oid database);

// A transaction of the worker's own, shown in pg_stat_activity as `activity`.
void begin_work(const char* activity);
void end_work();

// The same for work that looks at what a commit has changed in the catalogs. Commits wake us before
// they send their invalidations; so nothing that is cached can be believed.
void begin_work_on_changes(const char* activity);

// Whether an extension is there; if so, it stays until the transaction ends. DROP EXTENSION waits
// for us then, and not we for it, only to find the tables gone.
bool lock_extension(const char* name);

// begin_work(), lock_extension() and SPI in one. False: the extension is gone, nothing has begun.
bool begin_sql_work(const char* activity, const char* extension);
void end_sql_work();

// Does what signals asked for: ends the process, or reads the configuration again. Returns whether
// it did the latter.
bool handle_signals();

// Sleeps until the latch is set or the time (milliseconds; -1: for ever) is over; not at all when a
// reload is due.
void wait_for_latch(long timeout, const char* wait_event_name);

}  // namespace outbox
