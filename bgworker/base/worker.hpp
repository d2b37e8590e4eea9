// Functions that all background workers use: to become one, to look after one, to run a
// transaction.
#pragma once

#include "extension/base/pg.hpp"
#include "extension/base/shared_state.hpp"
#include "extension/base/steady_time.hpp"

namespace outbox {

// ---- looking after workers --------------------------------------------------------------------

// The reason, in the server log, why a worker does not run.
enum class Complaint { none, no_room, ends_early };

// A worker that its parent wants to live. If it ends, it is started again after a pause, which
// grows until it stays alive. A change of configuration ends the pause, because it may be the
// repair. Any role can make changes, so the number of starts is limited as well (`paid_until`).
struct Child {
    int slot;  // -1 if this parent has started none
    std::uint32_t ticket;
    BackgroundWorkerHandle* handle;
    Micros started_at;  // this and the next are steady_now()
    Micros not_before;
    Micros pause;
    int deaths;               // in a row, each after a short life
    std::int64_t unfinished;  // the message at which a processor has ended; 0 if none
    Micros paid_until;
    TimestampTz held_back_until;  // as last reported in the server log
    bool failed;                  // it ended with an error; for its parent, which clears this
    Complaint complaint;          // the last one in the server log, until it has been healthy
    bool absent;                  // recorded in the shared state as not living
};

void init_child(Child* child);

// Notices its end. Returns whether it lives.
bool child_lives(Child* child);

// Starts the worker, unless it lives (an earlier parent may have started it) or is held back
// because it crashed or ends again and again. If there is no free slot, or its account may have no
// more, it is tried again later. Returns the milliseconds after which to call this again, or -1 if
// there is no need.
long start_child(Child* child, const WorkerIdentity& identity, const char* name, Oid account);

// To be called when the worker is not wanted any more.
void forget_child(Child* child, const WorkerIdentity& identity);

// Returns the shorter of two timeouts in milliseconds, where -1 means no timeout.
long shorter_timeout(long a, long b);

// ---- for workers ------------------------------------------------------------------------------

// Begins the main function of a worker: signals, slot, database. The worker runs as the role of its
// slot, or else as the bootstrap superuser with a safe search_path and the server's own defaults
// for transactions.
void become_worker(Datum argument, WakeTarget wake_target);
// Does the same for a worker without a parent, as the bootstrap superuser.
void become_worker_without_slot(Oid database);

// Begins a transaction of the worker's own. pg_stat_activity shows `activity`.
void begin_work(const char* activity);
void end_work();

// Does the same for work that reads what a commit has changed in the catalogs. Commits wake workers
// before they send their invalidations, so cached catalog data may be stale.
void begin_work_on_changes(const char* activity);

// Returns whether an extension is installed; if so, keeps it until the transaction ends. DROP
// EXTENSION then waits for this worker. Otherwise the worker might wait for DROP EXTENSION, and
// then find the tables gone.
bool lock_extension(const char* name);

// Calls begin_work(), lock_extension() and SPI_connect(). Returns false, with no transaction open,
// if the extension is gone.
bool begin_sql_work(const char* activity, const char* extension);
void end_sql_work();

// Acts on signals: ends the process, or reads the configuration files again. Returns true in the
// second case.
bool handle_signals();

// Sleeps until the latch is set or the timeout (milliseconds, -1 for none) is over. Does not sleep
// if a reload is due.
void wait_for_latch(long timeout, const char* wait_event_name);

}  // namespace outbox
