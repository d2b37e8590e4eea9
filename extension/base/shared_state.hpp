// What the processes of pg_outbox share: who works for which database, who wants to be woken, and
// what each worker counts. Exists only when the library is preloaded.
//
// A worker slot is free, then reserved by the parent that starts a worker, then attached while the
// worker lives. Who writes what:
//
//   under the lock   identity, ticket, name, pid and error of a slot; holds; absent workers
//   Wakeup           atomics, close together, because every commit reads them: see wakeup.hpp.
//                    The worker writes database, process and kind when it attaches, and clears
//                    database when it leaves
//   other atomics    of a slot: written by its worker only, read by anyone without the lock. Each is
//                    true by itself; two of them may be of different moments
//
// A slot may be used again between two looks of its parent. So a parent remembers the ticket, which is
// another one for each use, and a worker that finds another ticket than it was started with exits.
// A number in slots_used only grows: slots below it may be free, slots from there on never were used.
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
    backing_off,  // the destination failed; it is left alone for a while, then probed
    throttled,    // it asks for fewer requests
    paused,       // by an operator
    misconfigured,
    stopped,
};

const char* worker_state_name(WorkerState state);

// What a commit needs to know of a worker: 16 bytes, so that four lie in a cache line.
struct Wakeup {
    std::atomic<Oid> database{InvalidOid};
    std::atomic<std::int32_t> process{-1};  // index into ProcGlobal->allProcs
    std::atomic<std::uint32_t> kind{0};     // a WakeTarget
    // Set by the worker before it looks, so that either it sees a commit or the commit sees this.
    std::atomic<bool> wanted{false};
    // Something the worker is configured by may have changed; it clears this and reads it again.
    std::atomic<bool> reload{false};
};

struct WorkerSlot {
    // Under the lock.
    WorkerKind kind;
    bool attached;
    Oid database;
    Oid object;   // a relay's foreign server (invalid: the default destination), a processor's
                  // consumer, the id of a backfill
    Oid role;     // as whom a processor runs
    Oid account;  // the role whose worker it is: outbox.max_workers_per_role
    std::uint32_t ticket;  // of this use of the slot
    int exit_code;         // of its last worker, for the parent; -1: it has not exited
    pid_t pid;
    pid_t parent;
    NameData name;  // of the destination or consumer
    TimestampTz last_error_at;
    char last_error[512];

    // Written by the worker, read by anyone.
    std::atomic<std::int32_t> ended_by;  // see crashes.hpp
    std::atomic<WorkerState> state;
    std::atomic<TimestampTz> state_since;
    std::atomic<std::int64_t> settled_position;
    std::atomic<std::int64_t> oldest;  // Unix micros of the first unsettled event; 0: none
    std::atomic<std::uint64_t> unsettled;
    std::atomic<std::uint64_t> held_keys;  // by events in trouble
    std::atomic<std::uint64_t> suspects;   // events that failed, or hang, in memory
    std::atomic<std::uint64_t> lanes_down;
    std::atomic<double> request_limit;   // a second, of the lane that is throttled most; 0: none
    std::atomic<std::uint64_t> read_to;  // a relay looked for events of transactions below
    std::atomic<std::uint32_t> reading;  // segments a relay knows places in, a bit for each
    DeliveryStats stats;
};

// Why there is no slot to be had.
enum class Refusal : std::uint32_t {
    none,
    no_slot,
    database_is_held,
    role_has_most,      // outbox.max_workers_per_role
    database_has_most,  // outbox.max_workers_per_database
};

// A worker that should live and does not: its parent waits before it starts it (again).
struct AbsentWorker {
    WorkerIdentity identity;  // kind none: the entry is free
    NameData name;
    Oid account;
    Refusal refusal;      // none: it ends again and again
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

    // A DROP DATABASE and its like, or a restore: no worker may be in this database.
    struct Hold {
        Oid database;
        int process;
    };
    static constexpr int max_holds = 64;
    Hold holds[max_holds];  // under the lock

    // Prepared transactions that change what workers are configured by, as hashes of their names; 0:
    // none. What does not get in, or was prepared before a restart, the keeper's poll finds.
    static constexpr int max_prepared = 64;
    std::atomic<std::uint64_t> prepared_changes[max_prepared];

    // Workers that should live and do not, by their parents. Where there are too many, those that
    // are noted stand for the others.
    static constexpr int max_absent = 256;
    static constexpr int max_absent_of_database = 64;
    AbsentWorker absent[max_absent];  // under the lock

    std::atomic<int> checks;      // that run: outbox.check_destination()
    std::uint32_t next_ticket;    // under the lock
    int slot_count;               // constant
    std::atomic<int> slots_used;  // slots from here on were never used
    Wakeup* wakeups;
    WorkerSlot* slots;
};

// nullptr when the library is not preloaded.
extern SharedState* shared;

// From _PG_init, when preloading.
void request_shared_state();

// ---- by parents -----------------------------------------------------------------------------

// Reserves a slot, on the account of a role (invalid: nobody's, without limit); or -1.
int reserve_slot(const WorkerIdentity& identity, const char* name, Oid account, Refusal& refusal);
// Gives back a slot whose worker could not be started, or died before it attached.
void release_reserved_slot(int slot, std::uint32_t ticket);
// How the worker of a slot that a parent reserved has ended; false also when that is not known.
bool ended_well(int slot, std::uint32_t ticket);
// The slot of a worker, reserved or attached; -1: there is none.
int find_slot(const WorkerIdentity& identity);
// Says for all to see that a worker does not live, and why; or that it does, or is not wanted.
void note_absent(const AbsentWorker& worker);
void forget_absent(const WorkerIdentity& identity);
// What another keeper has said of a database.
void forget_absent_of(Oid database);
// SIGTERM to the workers of a database: of one kind, or (WorkerKind::none) of all.
// Returns how many there still are, reserved slots included.
int terminate_workers(Oid database, WorkerKind kind);
// SIGTERM to one worker.
void terminate_worker(int slot);
// The same for the workers of outbox.check_destination(), which have no slots. One that is not
// connected yet is not found.
int terminate_checks(Oid database);
inline constexpr char check_worker_type[] = "pg_outbox check";

// ---- by workers -----------------------------------------------------------------------------

// Takes the slot that the parent reserved, and gives it back at exit. Exits the process when the
// slot is no longer meant for it. `argument` is bgw_main_arg.
void attach_to_slot(Datum argument, WakeTarget wake_target);
Datum slot_argument(int slot);
extern int my_slot;

void set_my_state(WorkerState state);
void set_my_error(const char* error);
void set_my_name(const char* name);

// Before a worker looks for work: from here on a commit wakes it.
void begin_looking();
// What the latch is set for. To be asked before every wait, for whoever waited for a lock meanwhile
// has reset the latch.
bool work_is_due();    // there was such a commit
bool reload_is_due();  // what the worker is configured by may have changed
// True once after such a change.
bool reload_requested();

// ---- holds ------------------------------------------------------------------------------------

// Until release_hold(), no worker is started in the database. At most one per process.
void hold_database(Oid database);
void release_hold();
// Until the session ends, no worker is started in its database. Returns whether that is new.
bool hold_database_for_session(Oid database);
bool is_held(Oid database);

}  // namespace outbox
