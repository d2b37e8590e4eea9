// The shared memory of pg_outbox: which worker works for which database, which wants to be woken,
// and what each one counts. It exists only when the library is preloaded.
//
// A worker slot is free, then reserved by the parent that starts a worker, then attached while the
// worker lives. A parent reserves it under the lock; the worker attaches and frees it under the
// lock. A parent frees it only if the worker never attached.
//
// Rules for writing:
//
//   under the lock   identity, ticket, name, pid and error of a slot; holds; absent workers.
//                    bgworker/keeper/segments.cpp reads the identities of relays without the lock:
//                    they do not change while the relays are attached
//   Wakeup           atomics, close together because every commit reads them. The worker writes
//                    process, kind and then database when it attaches, and clears database first
//                    when it leaves. wakeup.hpp has the protocol of `wanted` and `reload`
//   other atomics    of a slot: the parent resets them when it reserves the slot; then only its
//                    worker writes them, and any process reads them without the lock. Each value is
//                    correct by itself, but two of them may be from different moments
//
// A slot may be used again between two looks of its parent. So each use has a new ticket: the
// parent remembers it, and a worker that finds another ticket than the one it was started with
// exits.
//
// slots_used only grows. Slots below it may be free; slots from there on were never used.
#pragma once

#include <atomic>

#include "core/delivery_stats.hpp"
#include "extension/base/pg.hpp"
#include "extension/base/wakeup.hpp"
#include "extension/base/worker_identity.hpp"

namespace outbox {

enum class WorkerState : std::uint32_t {
    starting,
    idle,         // nothing to do
    delivering,   // or processing
    backing_off,  // the destination failed; the relay waits, then probes it
    throttled,    // the destination asks for fewer requests
    paused,       // by an operator
    misconfigured,
    stopped,
};

const char* worker_state_name(WorkerState state);

// The part of a worker that commits read. It takes 16 bytes, so that four lie in a cache line.
struct Wakeup {
    std::atomic<Oid> database{InvalidOid};
    std::atomic<std::int32_t> process{-1};  // index into ProcGlobal->allProcs
    std::atomic<std::uint32_t> kind{0};     // a WakeTarget
    // The worker sets this before it takes a snapshot; a commit that finds it true clears it and
    // wakes the worker.
    std::atomic<bool> wanted{false};
    // A commit sets this when configuration of the worker may have changed. The worker clears it
    // and then reads its configuration again.
    std::atomic<bool> reload{false};
};

struct WorkerSlot {
    // The following are written under the lock.
    WorkerKind kind;
    bool attached;
    Oid database;
    Oid object;   // a relay's foreign server (invalid: the default destination), a processor's
                  // consumer, the id of a backfill
    Oid role;     // the role that a processor runs as
    Oid account;  // the role it counts for in outbox.max_workers_per_role
    std::uint32_t ticket;  // of this use of the slot
    int exit_code;         // of its last worker, for the parent; -1 if it has not exited
    long ask_again_in;  // ms after which a keeper that leaves wants to be started again; -1: never
    std::int64_t unfinished;  // the message at which the processor before this one ended; 0 if none
    pid_t pid;
    pid_t parent;
    NameData name;  // of the destination or consumer
    TimestampTz last_error_at;
    char last_error[512];

    // The following are written by the worker, and read without the lock.
    std::atomic<std::int32_t> ended_by;  // see crashes.hpp
    std::atomic<std::int64_t> at_work;   // the message that a processor processes; 0 if none
    std::atomic<WorkerState> state;
    std::atomic<TimestampTz> state_since;
    std::atomic<std::int64_t> settled_position;
    std::atomic<std::int64_t> oldest;  // Unix micros of the first unsettled event; 0 if none
    std::atomic<std::int64_t> failing_since, next_attempt;  // Unix micros; 0 if none
    std::atomic<std::uint64_t> unsettled;
    std::atomic<std::uint64_t> held_keys;  // by events in trouble
    std::atomic<std::uint64_t> suspects;   // failed or hanging events in memory
    std::atomic<std::uint64_t> lanes_down;
    // Figures of the sink's client library; -1 if there is none, or it reports none.
    std::atomic<std::int64_t> round_trip_p50, round_trip_p99, client_queue, connects, disconnects;
    std::atomic<double> request_limit;   // per second, of the lane with the lowest; 0 if none
    std::atomic<std::uint64_t> read_to;  // a relay looked for events of transactions below this xid
    std::atomic<std::uint32_t> reading;  // segments of which a relay holds TIDs, a bit each
    DeliveryStats stats;
};

// The reason why a parent gets no slot.
enum class Refusal : std::uint32_t {
    none,
    no_slot,     // outbox.max_workers
    no_process,  // max_worker_processes
    database_is_held,
    role_has_most,      // outbox.max_workers_per_role
    database_has_most,  // outbox.max_workers_per_database
};

// A worker that should live and does not. Its parent waits before it starts it again.
struct AbsentWorker {
    WorkerIdentity identity;  // of kind none if the entry is free
    NameData name;
    Oid account;
    Refusal refusal;      // none if it was started, and ended again and again
    std::int32_t deaths;  // in a row
    TimestampTz since;
    TimestampTz next_try;  // at the latest
};

struct SharedState {
    LWLock* lock;
    std::atomic<std::int32_t> launcher{-1};  // its index into ProcGlobal->allProcs

    // Databases in which something was created or dropped since the launcher last looked.
    static constexpr int max_changed = 64;
    std::atomic<Oid> changed[max_changed];
    std::atomic<bool> everything_changed;

    // No worker may be in this database, because of DROP DATABASE, a statement like it, or a
    // restore.
    struct Hold {
        Oid database;
        int process;
    };
    static constexpr int max_holds = 64;
    Hold holds[max_holds];  // under the lock

    // Prepared transactions that change the configuration of workers, as hashes of their names; 0
    // if free. The keeper's poll finds changes that did not fit, or that were prepared before a
    // restart.
    static constexpr int max_prepared = 64;
    std::atomic<std::uint64_t> prepared_changes[max_prepared];

    // Workers that should live and do not, noted by their parents. If there are too many, not all
    // are noted.
    static constexpr int max_absent = 256;
    static constexpr int max_absent_of_database = 64;
    AbsentWorker absent[max_absent];  // under the lock

    // Roles whose outbox.check_destination() runs now; 0 if free. Each check takes a background worker
    // that others may need, and a peer may keep it for as long as it may last.
    static constexpr int max_checks = 4;
    static constexpr int max_checks_of_role = 2;  // unless it is a superuser
    std::atomic<Oid> checks[max_checks];

    std::uint32_t next_ticket;    // under the lock
    int slot_count;               // constant
    std::atomic<int> slots_used;  // slots from here on were never used
    Wakeup* wakeups;
    WorkerSlot* slots;
};

// nullptr if the library is not preloaded.
extern SharedState* shared;

// Called from _PG_init when the library is preloaded.
void request_shared_state();

// ---- for parents ----------------------------------------------------------------------------

// Reserves a slot and returns its index, or returns -1 and the refusal. `account` is the role it
// counts for; workers of an invalid one have no limit.
int reserve_slot(const WorkerIdentity& identity, const char* name, Oid account, Refusal& refusal);
// Gives back a slot whose worker could not be started, or died before it attached.
void release_reserved_slot(int slot, std::uint32_t ticket);
// Returns whether the worker of a slot that this parent reserved exited with code 0; false also if
// that is not known.
bool ended_well(int slot, std::uint32_t ticket);
// Returns `ask_again_in` of that worker, or -1 if the slot has another one.
long ask_again_in(int slot, std::uint32_t ticket);
// Returns the message at which the processor in a slot has ended, or one that it was to count as failed
// and has not; 0 if there is none.
std::int64_t unfinished_message(int slot, std::uint32_t ticket);
// Returns the slot of a worker, reserved or attached; -1 if it has none.
int find_slot(const WorkerIdentity& identity);
// Records for the views that a worker does not live, and why. forget_absent() removes that, when it
// lives or is not wanted.
void note_absent(const AbsentWorker& worker);
void forget_absent(const WorkerIdentity& identity);
// Removes what an earlier keeper has recorded about a database.
void forget_absent_of(Oid database);
// Returns the number of background workers that the server should run, as far as this process can
// know: those of pg_outbox in all databases, the missing ones included, and those of others that
// run. `relays` are destinations of this database that should have one.
int workers_needed(const Oid* relays, int count);
// Sends SIGTERM to the workers of a database: of one kind, or of all kinds (WorkerKind::none).
// Returns how many there still are, reserved slots included.
int terminate_workers(Oid database, WorkerKind kind);
// Sends SIGTERM to one worker.
void terminate_worker(int slot);
// Does the same for the workers of outbox.check_destination(), which have no slots. It does not
// find one that is not connected yet.
int terminate_checks(Oid database);
inline constexpr char check_worker_type[] = "pg_outbox check";

// ---- for workers ----------------------------------------------------------------------------

// Takes the slot that the parent reserved, and gives it back at exit. Exits the process if the slot
// is meant for another worker by now. `argument` is bgw_main_arg.
void attach_to_slot(Datum argument, WakeTarget wake_target);
Datum slot_argument(int slot);
extern int my_slot;

// Returns the counts as a bigint[], for SQL.
Datum array_of(const LatencyBuckets::Figures& latencies);

void set_my_state(WorkerState state);
void set_my_error(const char* error);
void set_my_name(const char* name);

// To be called before the worker looks for work: from here on a commit wakes it.
void begin_looking();
// The worker has not seen all that was committed before begin_looking(): work is due.
void must_look_again();
// These say why the latch may be set. Ask them before every wait: a wait for a lock may have reset
// the latch meanwhile.
bool work_is_due();    // there was a commit with work
bool reload_is_due();  // the worker's configuration may have changed
// Returns true once after such a change.
bool reload_requested();

// ---- holds ------------------------------------------------------------------------------------

// No worker starts in the database until release_hold(). A process has at most one such hold.
void hold_database(Oid database);
void release_hold();
// No worker starts in the session's database until the session ends. Returns false if the session
// held it already.
bool hold_database_for_session(Oid database);
bool is_held(Oid database);

}  // namespace outbox
