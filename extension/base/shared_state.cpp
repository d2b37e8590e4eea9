#include "extension/base/shared_state.hpp"

#include <csignal>
#include <new>

#include "extension/base/crashes.hpp"
#include "extension/base/settings.hpp"

namespace outbox {

SharedState* shared = nullptr;
int my_slot = -1;

static shmem_request_hook_type previous_shmem_request_hook = nullptr;
static shmem_startup_hook_type previous_shmem_startup_hook = nullptr;

static Size wakeups_offset() {
    return MAXALIGN(sizeof(SharedState));
}
static Size slots_offset() {
    return CACHELINEALIGN(wakeups_offset() + sizeof(Wakeup) * settings::max_workers);
}
static Size shared_size() {
    return slots_offset() + sizeof(WorkerSlot) * settings::max_workers;
}

static void request_shmem() {
    if (previous_shmem_request_hook)
        previous_shmem_request_hook();
    RequestAddinShmemSpace(shared_size());
    RequestNamedLWLockTranche("pg_outbox", 1);
}

static void startup_shmem() {
    if (previous_shmem_startup_hook)
        previous_shmem_startup_hook();

    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    bool found = false;
    char* memory = static_cast<char*>(ShmemInitStruct("pg_outbox", shared_size(), &found));
    shared = reinterpret_cast<SharedState*>(memory);
    if (!found) {
        new (shared) SharedState();
        shared->lock = &GetNamedLWLockTranche("pg_outbox")->lock;
        shared->slot_count = settings::max_workers;
        shared->wakeups = reinterpret_cast<Wakeup*>(memory + wakeups_offset());
        shared->slots = reinterpret_cast<WorkerSlot*>(memory + slots_offset());
        for (int i = 0; i < shared->slot_count; i++) {
            new (&shared->wakeups[i]) Wakeup();
            new (&shared->slots[i]) WorkerSlot();
        }
        watch_shared_state_for_crashes();
    }
    LWLockRelease(AddinShmemInitLock);
}

void request_shared_state() {
    previous_shmem_request_hook = shmem_request_hook;
    shmem_request_hook = request_shmem;
    previous_shmem_startup_hook = shmem_startup_hook;
    shmem_startup_hook = startup_shmem;
}

const char* worker_state_name(WorkerState state) {
    switch (state) {
        case WorkerState::starting:
            return "starting";
        case WorkerState::idle:
            return "idle";
        case WorkerState::delivering:
            return "delivering";
        case WorkerState::backing_off:
            return "backing off";
        case WorkerState::throttled:
            return "throttled";
        case WorkerState::paused:
            return "paused";
        case WorkerState::misconfigured:
            return "misconfigured";
        case WorkerState::stopped:
            break;
    }
    return "stopped";
}

// ---------------------------------------------------------------------------------------------
// Parents
// ---------------------------------------------------------------------------------------------

static int find_slot_locked(const WorkerIdentity& identity) {
    for (int i = 0; i < shared->slots_used; i++) {
        const WorkerSlot& slot = shared->slots[i];
        if (slot.kind == identity.kind && slot.database == identity.database &&
            slot.object == identity.object && slot.role == identity.role)
            return i;
    }
    return -1;
}

static bool is_held_locked(Oid database) {
    for (const SharedState::Hold& hold : shared->holds)
        if (hold.database == database)
            return true;
    return false;
}

int find_slot(const WorkerIdentity& identity) {
    LWLockAcquire(shared->lock, LW_SHARED);
    const int slot = find_slot_locked(identity);
    LWLockRelease(shared->lock);
    return slot;
}

// Keeps one role from taking all workers with many consumers, tables or databases. Backfills get at most
// half, because one role may start many of them, and they can wait for each other. So do keepers, which
// are of no use without the workers that they start.
static bool role_has_most(Oid account, WorkerKind kind) {
    if (!OidIsValid(account) || settings::max_workers_per_role == 0)
        return false;
    const int most = Max(1, Min(settings::max_workers_per_role, max_worker_processes / 2));
    const bool gets_half = kind == WorkerKind::backfill || kind == WorkerKind::keeper;
    int all = 0, of_kind = 0;
    for (int i = 0; i < shared->slots_used; i++) {
        const WorkerSlot& slot = shared->slots[i];
        if (slot.kind == WorkerKind::none || slot.account != account)
            continue;
        all++;
        of_kind += slot.kind == kind;
    }
    return all >= most || (gets_half && of_kind >= (most + 1) / 2);
}

// Each database of a role with CREATEDB may want a keeper. Half of the processes are left for what
// keepers start, and for others.
static bool keepers_have_most(Oid account, WorkerKind kind) {
    if (kind != WorkerKind::keeper || !OidIsValid(account))
        return false;
    int keepers = 0;
    for (int i = 0; i < shared->slots_used; i++)
        keepers += shared->slots[i].kind == WorkerKind::keeper;
    return keepers >= Max(1, max_worker_processes / 2);
}

static bool database_has_most(Oid database, WorkerKind kind) {
    if (kind == WorkerKind::keeper || settings::max_workers_per_database == 0)
        return false;
    int count = 0;
    for (int i = 0; i < shared->slots_used; i++)
        count +=
            shared->slots[i].kind > WorkerKind::keeper && shared->slots[i].database == database;
    return count >= settings::max_workers_per_database;
}

// Runs under the same lock as the slots are written: after a hold is set, no worker starts in that
// database.
static Refusal find_refusal(const WorkerIdentity& identity, Oid account, int slot) {
    if (is_held_locked(identity.database))
        return Refusal::database_is_held;
    if (role_has_most(account, identity.kind))
        return Refusal::role_has_most;
    if (database_has_most(identity.database, identity.kind))
        return Refusal::database_has_most;
    if (keepers_have_most(account, identity.kind))
        return Refusal::no_process;
    return slot < 0 ? Refusal::no_slot : Refusal::none;
}

int reserve_slot(const WorkerIdentity& identity, const char* name, Oid account, Refusal& refusal) {
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    int chosen = find_slot_locked({});
    if (chosen < 0 && shared->slots_used < shared->slot_count)
        chosen = shared->slots_used;
    refusal = find_refusal(identity, account, chosen);
    if (refusal != Refusal::none)
        chosen = -1;
    if (chosen >= 0) {
        WorkerSlot& slot = shared->slots[chosen];
        slot.kind = identity.kind;
        slot.attached = false;
        slot.database = identity.database;
        slot.object = identity.object;
        slot.role = identity.role;
        slot.account = account;
        slot.ended_by = 0;
        slot.exit_code = -1;
        slot.ask_again_in = -1;
        slot.unfinished = 0;
        slot.at_work = 0;
        slot.ticket = ++shared->next_ticket;
        slot.pid = 0;
        slot.parent = MyProcPid;
        namestrcpy(&slot.name, name);
        slot.last_error_at = 0;
        slot.last_error[0] = '\0';
        slot.state = WorkerState::starting;
        slot.state_since = GetCurrentTimestamp();
        slot.settled_position = 0;
        slot.oldest = 0;
        slot.failing_since = 0;
        slot.next_attempt = 0;
        slot.unsettled = 0;
        slot.held_keys = 0;
        slot.suspects = 0;
        slot.lanes_down = 0;
        for (auto* figure : {&slot.round_trip_p50, &slot.round_trip_p99, &slot.client_queue,
                             &slot.connects, &slot.disconnects})
            *figure = -1;
        slot.request_limit = 0;
        slot.read_to = 0;
        slot.reading = 0;
        slot.stats.reset();
        if (chosen == shared->slots_used)  // after its fields, for readers without the lock
            shared->slots_used = chosen + 1;
    }
    LWLockRelease(shared->lock);
    return chosen;
}

static void free_slot_locked(WorkerSlot& slot) {
    slot.kind = WorkerKind::none;
    slot.attached = false;
    slot.database = InvalidOid;
    slot.object = InvalidOid;
    slot.role = InvalidOid;
    slot.account = InvalidOid;
    slot.pid = 0;
}

static AbsentWorker* find_absent_locked(const WorkerIdentity& identity) {
    for (AbsentWorker& absent : shared->absent)
        if (absent.identity == identity)
            return &absent;
    return nullptr;
}

static AbsentWorker* new_absent_locked(Oid database) {
    int count = 0;
    for (const AbsentWorker& absent : shared->absent)
        count += absent.identity.kind != WorkerKind::none && absent.identity.database == database;
    return count < SharedState::max_absent_of_database ? find_absent_locked({}) : nullptr;
}

void note_absent(const AbsentWorker& worker) {
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    AbsentWorker* entry = find_absent_locked(worker.identity);
    const TimestampTz since = entry != nullptr ? entry->since : worker.since;
    if (entry == nullptr)
        entry = new_absent_locked(worker.identity.database);
    if (entry != nullptr) {
        *entry = worker;
        entry->since = since;
    }
    LWLockRelease(shared->lock);
}

void forget_absent(const WorkerIdentity& identity) {
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    if (AbsentWorker* entry = find_absent_locked(identity); entry != nullptr)
        *entry = {};
    LWLockRelease(shared->lock);
}

void forget_absent_of(Oid database) {
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    for (AbsentWorker& absent : shared->absent)
        if (absent.identity.kind > WorkerKind::keeper && absent.identity.database == database)
            absent = {};
    LWLockRelease(shared->lock);
}

static bool is_known_locked(const WorkerIdentity& identity) {
    return find_slot_locked(identity) >= 0 || find_absent_locked(identity) != nullptr;
}

// Workers for parallel queries come and go, and queries run without them.
static int workers_of_others() {
    int count = 0;
    for (uint32 i = 0; i < ProcGlobal->allProcCount; i++) {
        const pid_t pid = ProcGlobal->allProcs[i].pid;
        const char* type = pid != 0 ? GetBackgroundWorkerTypeByPid(pid) : nullptr;
        count += type != nullptr && strcmp(type, "parallel worker") != 0 &&
                 strncmp(type, "pg_outbox", strlen("pg_outbox")) != 0;
    }
    return count;
}

int workers_needed(const Oid* relays, int count) {
    int needed = 1 + workers_of_others();  // the launcher
    LWLockAcquire(shared->lock, LW_SHARED);
    for (int i = 0; i < shared->slots_used; i++)
        needed += shared->slots[i].kind != WorkerKind::none;
    for (const AbsentWorker& absent : shared->absent)
        needed += absent.identity.kind != WorkerKind::none &&
                  find_slot_locked(absent.identity) < 0 &&
                  absent.refusal != Refusal::role_has_most &&
                  absent.refusal != Refusal::database_has_most;
    needed += !is_known_locked({WorkerKind::keeper, MyDatabaseId, InvalidOid, InvalidOid});
    for (int i = 0; i < count; i++)
        needed += !is_known_locked({WorkerKind::relay, MyDatabaseId, relays[i], InvalidOid});
    LWLockRelease(shared->lock);
    return needed;
}

void release_reserved_slot(int i, std::uint32_t ticket) {
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    WorkerSlot& slot = shared->slots[i];
    if (slot.ticket == ticket && !slot.attached)
        free_slot_locked(slot);
    LWLockRelease(shared->lock);
}

bool ended_well(int i, std::uint32_t ticket) {
    LWLockAcquire(shared->lock, LW_SHARED);
    const WorkerSlot& slot = shared->slots[i];
    const bool well = slot.ticket == ticket && slot.exit_code == 0;
    LWLockRelease(shared->lock);
    return well;
}

long ask_again_in(int i, std::uint32_t ticket) {
    LWLockAcquire(shared->lock, LW_SHARED);
    const WorkerSlot& slot = shared->slots[i];
    const long milliseconds = slot.ticket == ticket ? slot.ask_again_in : -1;
    LWLockRelease(shared->lock);
    return milliseconds;
}

std::int64_t unfinished_message(int i, std::uint32_t ticket) {
    LWLockAcquire(shared->lock, LW_SHARED);
    const WorkerSlot& slot = shared->slots[i];
    const std::int64_t at_work = slot.at_work;
    const std::int64_t message = at_work != 0 ? at_work : slot.unfinished;
    LWLockRelease(shared->lock);
    return slot.ticket == ticket ? message : 0;
}

int terminate_workers(Oid database, WorkerKind kind) {
    int count = 0;
    LWLockAcquire(shared->lock, LW_SHARED);
    for (int i = 0; i < shared->slots_used; i++) {
        const WorkerSlot& slot = shared->slots[i];
        if (slot.kind == WorkerKind::none || slot.database != database ||
            (kind != WorkerKind::none && slot.kind != kind))
            continue;
        count++;
        if (slot.attached)
            kill(slot.pid, SIGTERM);
    }
    LWLockRelease(shared->lock);
    return count;
}

void terminate_worker(int i) {
    // The worker needs the lock to free its slot, so its pid cannot be that of another process.
    LWLockAcquire(shared->lock, LW_SHARED);
    if (shared->slots[i].attached)
        kill(shared->slots[i].pid, SIGTERM);
    LWLockRelease(shared->lock);
}

int terminate_checks(Oid database) {
    int count = 0;
    for (uint32 i = 0; i < ProcGlobal->allProcCount; i++) {
        const PGPROC& process = ProcGlobal->allProcs[i];
        const pid_t pid = process.pid;
        if (process.databaseId != database || pid == 0)
            continue;
        const char* type = GetBackgroundWorkerTypeByPid(pid);  // nullptr also if it has ended
        if (type == nullptr || strcmp(type, check_worker_type) != 0)
            continue;
        count++;
        kill(pid, SIGTERM);
    }
    return count;
}

// ---------------------------------------------------------------------------------------------
// Workers
// ---------------------------------------------------------------------------------------------

Datum slot_argument(int slot) {
    return Int64GetDatum((static_cast<int64>(shared->slots[slot].ticket) << 32) | slot);
}

// Wakes the keeper of the database, which started this worker or will start the next. Reads without
// the lock: if the keeper leaves meanwhile, another process may be woken, which is harmless.
static void wake_keeper(Oid database) {
    for (int i = 0; i < shared->slots_used; i++) {
        const Wakeup& wakeup = shared->wakeups[i];
        if (wakeup.database == database && wakeup.kind == WakeKeeper && wakeup.process >= 0)
            SetLatch(&ProcGlobal->allProcs[wakeup.process].procLatch);
    }
}

static pid_t launcher_pid() {
    const std::int32_t launcher = shared->launcher;
    return launcher >= 0 ? ProcGlobal->allProcs[launcher].pid : 0;
}

// A worker has ended, so there may be room for one that waited. A stale list is harmless: keepers
// look again by themselves.
static void wake_keepers_that_wait(Oid account) {
    Oid databases[SharedState::max_absent];
    int count = 0;
    LWLockAcquire(shared->lock, LW_SHARED);
    for (const AbsentWorker& absent : shared->absent)
        if (absent.identity.kind != WorkerKind::none && absent.refusal != Refusal::none &&
            (absent.refusal != Refusal::role_has_most || absent.account == account) &&
            (count == 0 || databases[count - 1] != absent.identity.database))
            databases[count++] = absent.identity.database;
    LWLockRelease(shared->lock);
    for (int i = 0; i < count; i++)
        wake_keeper(databases[i]);
}

static void detach_from_slot(int exit_code, Datum) {
    WorkerSlot& slot = shared->slots[my_slot];
    Wakeup& wakeup = shared->wakeups[my_slot];
    wakeup.database = InvalidOid;  // before reading `reload`: see wake_for_change()
    wakeup.wanted = false;
    wakeup.process = -1;
    wakeup.kind = 0;

    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    const WorkerKind kind = slot.kind;
    const Oid database = slot.database;
    const Oid account = slot.account;
    const bool parent_knows = slot.parent == launcher_pid();
    slot.exit_code = exit_code;
    if (slot.attached && slot.pid == MyProcPid)
        free_slot_locked(slot);
    LWLockRelease(shared->lock);
    wake_keepers_that_wait(account);

    if (kind != WorkerKind::keeper) {
        wake_keeper(database);
        return;
    }
    // Exit code 0 means that there was nothing to look after. The launcher need not come back,
    // unless something changed just now. After an error, the launcher that started this keeper sees
    // its end and waits for a pause, which mark_changed() would cut short. A launcher that did not
    // start it has to be told.
    if (wakeup.reload || (exit_code != 0 && !parent_knows))
        mark_changed(database);
    wake_launcher();
}

void attach_to_slot(Datum argument, WakeTarget wake_target) {
    const int i = static_cast<int>(DatumGetInt64(argument) & 0xffffffff);
    const std::uint32_t ticket = static_cast<std::uint32_t>(DatumGetInt64(argument) >> 32);
    WorkerSlot& slot = shared->slots[i];
    Wakeup& wakeup = shared->wakeups[i];

    mark_slot_on_crash();
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    const bool mine = slot.kind != WorkerKind::none && !slot.attached && slot.ticket == ticket;
    if (mine) {
        my_slot = i;
        slot.pid = MyProcPid;
        slot.attached = true;
    }
    LWLockRelease(shared->lock);
    if (!mine)
        proc_exit(0);

    before_shmem_exit(detach_from_slot, 0);
    wakeup.wanted = false;
    wakeup.reload = false;
    wakeup.process = compat::my_proc_number();
    wakeup.kind = wake_target;
    wakeup.database = slot.database;  // last: commits find this entry from here on
}

void set_my_state(WorkerState state) {
    WorkerSlot& slot = shared->slots[my_slot];
    if (slot.state.load(std::memory_order_relaxed) == state)
        return;
    slot.state.store(state, std::memory_order_relaxed);
    slot.state_since.store(GetCurrentTimestamp(), std::memory_order_relaxed);
}

void set_my_error(const char* error) {
    WorkerSlot& slot = shared->slots[my_slot];
    const int length = pg_mbcliplen(error, static_cast<int>(strlen(error)),
                                    static_cast<int>(sizeof slot.last_error) - 1);
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    memcpy(slot.last_error, error, static_cast<size_t>(length));
    slot.last_error[length] = '\0';
    slot.last_error_at = GetCurrentTimestamp();
    LWLockRelease(shared->lock);
}

void set_my_name(const char* name) {
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    namestrcpy(&shared->slots[my_slot].name, name);
    LWLockRelease(shared->lock);
}

void begin_looking() {
    shared->wakeups[my_slot].wanted.store(true, std::memory_order_relaxed);
    // This write must come before the snapshot that the worker takes next. Pairs with the fence in
    // wake_for_work().
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

void must_look_again() {
    shared->wakeups[my_slot].wanted.store(false, std::memory_order_relaxed);
}

bool work_is_due() {
    return !shared->wakeups[my_slot].wanted;
}

bool reload_is_due() {
    return shared->wakeups[my_slot].reload;
}

bool reload_requested() {
    return shared->wakeups[my_slot].reload.exchange(false);
}

// ---------------------------------------------------------------------------------------------
// Holds
// ---------------------------------------------------------------------------------------------

// Indexes into the holds; -1 if none.
static int my_hold = -1;          // until the transaction ends
static int my_session_hold = -1;  // until the session ends

static int take_hold(Oid database) {
    int taken = -1;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    for (int i = 0; i < SharedState::max_holds && taken < 0; i++)
        if (!OidIsValid(shared->holds[i].database)) {
            shared->holds[i] = {database, MyProcPid};
            taken = i;
        }
    LWLockRelease(shared->lock);
    if (taken < 0)
        ereport(ERROR,
                (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                 errmsg("too many databases are being dropped, copied or restored at the same "
                        "time")));
    return taken;
}

static void give_back_hold(int& hold) {
    if (hold < 0)
        return;
    LWLockAcquire(shared->lock, LW_EXCLUSIVE);
    const Oid database = shared->holds[hold].database;
    shared->holds[hold].database = InvalidOid;
    LWLockRelease(shared->lock);
    hold = -1;
    mark_changed(database);
    wake_launcher();
}

void hold_database(Oid database) {
    release_hold();
    my_hold = take_hold(database);
}

void release_hold() {
    give_back_hold(my_hold);
}

bool hold_database_for_session(Oid database) {
    if (my_session_hold >= 0)
        return false;
    my_session_hold = take_hold(database);
    before_shmem_exit([](int, Datum) { give_back_hold(my_session_hold); }, 0);
    return true;
}

bool is_held(Oid database) {
    LWLockAcquire(shared->lock, LW_SHARED);
    const bool held = is_held_locked(database);
    LWLockRelease(shared->lock);
    return held;
}

}  // namespace outbox
