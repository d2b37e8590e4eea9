#include "bgworker/base/worker.hpp"

#include <span>

#include "bgworker/base/log_quota.hpp"
#include "extension/base/crashes.hpp"
#include "extension/base/outside_text.hpp"

namespace outbox {

// A worker that lived for this long is healthy: it is started again without a pause.
static constexpr Micros healthy_time = seconds(60);
static constexpr Micros first_pause = seconds(1);
static constexpr Micros max_restart_pause = seconds(60);
// However short the pauses are, at most starts_at_once starts in a row, then one per
// time_per_start.
static constexpr int starts_at_once = 4;
static constexpr Micros time_per_start = seconds(2);
// A worker without a free slot is told when there may be one. It also looks by itself after this
// time.
static constexpr Micros wait_for_room = seconds(10);

// ---------------------------------------------------------------------------------------------
// Looking after workers
// ---------------------------------------------------------------------------------------------

void init_child(Child* child) {
    memset(child, 0, sizeof *child);
    child->slot = -1;
    child->pause = first_pause;
}

bool child_lives(Child* child) {
    if (child->slot < 0)
        return false;
    pid_t pid;
    if (GetBackgroundWorkerPid(child->handle, &pid) != BGWH_STOPPED)
        return true;

    release_reserved_slot(child->slot, child->ticket);  // if the worker died before it attached
    child->failed = !ended_well(child->slot, child->ticket);
    child->unfinished = unfinished_message(child->slot, child->ticket);
    pfree(child->handle);
    child->handle = nullptr;
    child->slot = -1;
    const Micros now = steady_now();
    if (!child->failed || now - child->started_at >= healthy_time) {
        child->pause = first_pause;
        child->deaths = 0;
        child->complaint = Complaint::none;
        child->not_before = now;
    } else {
        child->deaths++;
        child->not_before = now + child->pause;
        child->pause = Min(child->pause * 2, max_restart_pause);
    }
    return false;
}

// How each kind of worker is started and shown.
struct KindOfWorker {
    const char* entry_point;
    const char* type;
};

static KindOfWorker kind_of_worker(WorkerKind kind) {
    switch (kind) {
        case WorkerKind::keeper:
            return {"outbox_keeper_main", "pg_outbox keeper"};
        case WorkerKind::relay:
            return {"outbox_relay_main", "pg_outbox relay"};
        case WorkerKind::processor:
            return {"outbox_processor_main", "pg_outbox processor"};
        case WorkerKind::backfill:
            return {"outbox_backfill_main", "pg_outbox backfill"};
        case WorkerKind::none:
            break;
    }
    elog(ERROR, "unknown kind of worker %d", static_cast<int>(kind));
    pg_unreachable();
}

// Any role can make workers start and fail.
static LogQuota complaints;

// Without a keeper nothing in the database is served, and outbox.health() may not be there.
static void complain_of_role(const char* type, const char* name) {
    ereport(WARNING,
            (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
             errmsg("could not start %s %s: its role has too many workers", type,
                    NameForLog(name).text),
             errdetail("The owner of a database can have as many keepers as half of "
                       "outbox.max_workers_per_role, and of half of max_worker_processes."),
             errhint("Increase these settings, or end other workers of the role.")));
}

static void complain_of_no_room(const char* type, const char* name, Refusal refusal) {
    if (refusal == Refusal::role_has_most)
        return complain_of_role(type, name);
    const bool slots = refusal == Refusal::no_slot;
    ereport(WARNING,
            (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
             errmsg("could not start %s %s: out of %s", type, NameForLog(name).text,
                    slots ? "worker slots" : "background worker slots"),
             errhint("Increase %s. pg_outbox needs one worker for itself, one per database "
                     "and one per destination, consumer and backfill.",
                     slots ? "outbox.max_workers" : "max_worker_processes")));
}

static void complain_of_early_ends(const char* type, const char* name, const Child* child) {
    ereport(WARNING, (errmsg("%s %s has ended early %d times in a row", type, NameForLog(name).text,
                             child->deaths),
                      errdetail("It is started again, after longer and longer pauses."),
                      errhint("Lines before this one say why it ended.")));
}

// Complains of a worker that does not run when the reason changes, not with each attempt to start
// it.
static void complain(Child* child, const WorkerIdentity& identity, const char* name,
                     Complaint complaint, Refusal refusal = Refusal::none) {
    if (child->complaint == complaint)
        return;
    child->complaint = complaint;
    if (!complaints.take())
        return;
    const char* type = kind_of_worker(identity.kind).type;
    if (complaint == Complaint::no_room)
        complain_of_no_room(type, name, refusal);
    else
        complain_of_early_ends(type, name, child);
}

static Refusal launch(Child* child, const WorkerIdentity& identity, const char* name, Oid account) {
    const KindOfWorker how = kind_of_worker(identity.kind);
    BackgroundWorker worker;
    memset(&worker, 0, sizeof worker);
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = BGW_NEVER_RESTART;  // its parent does that
    worker.bgw_notify_pid = MyProcPid;
    strlcpy(worker.bgw_library_name, compat::module_name, sizeof worker.bgw_library_name);
    strlcpy(worker.bgw_function_name, how.entry_point, sizeof worker.bgw_function_name);
    strlcpy(worker.bgw_type, how.type, sizeof worker.bgw_type);
    // PostgreSQL logs it.
    snprintf(worker.bgw_name, sizeof worker.bgw_name, "%s %s", how.type, NameForLog(name).text);

    Refusal refusal;
    const int slot = reserve_slot(identity, name, account, refusal);
    if (refusal != Refusal::none)
        return refusal;
    worker.bgw_main_arg = slot_argument(slot);
    const std::uint32_t ticket = shared->slots[slot].ticket;
    shared->slots[slot].unfinished = child->unfinished;
    if (!RegisterDynamicBackgroundWorker(&worker, &child->handle)) {
        release_reserved_slot(slot, ticket);
        return Refusal::no_process;
    }
    child->slot = slot;
    child->ticket = ticket;
    return Refusal::none;
}

static void show_absent(Child* child, const WorkerIdentity& identity, const char* name, Oid account,
                        Refusal refusal, Micros pause) {
    AbsentWorker absent = {};
    absent.identity = identity;
    namestrcpy(&absent.name, name);
    absent.account = account;
    absent.refusal = refusal;
    absent.deaths = child->deaths;
    absent.since = GetCurrentTimestamp();
    absent.next_try = absent.since + pause;
    note_absent(absent);
    child->absent = true;
}

void forget_child(Child* child, const WorkerIdentity& identity) {
    if (child->absent)
        forget_absent(identity);
    child->absent = false;
}

// Returns for how long workers of a database that keeps crashing the server are held back; see
// crashes.hpp.
static Micros time_until_crashes_are_forgotten(Child* child, const WorkerIdentity& identity,
                                               const char* name) {
    const CrashNote* note = nullptr;
    const TimestampTz until = held_back_until(identity, &note);
    if (until > child->held_back_until) {
        child->held_back_until = until;
        ereport(WARNING,
                (errmsg("%s %s is held back until %s", kind_of_worker(identity.kind).type,
                        NameForLog(name).text, timestamptz_to_str(until)),
                 note->identity.kind == WorkerKind::none
                     ? errdetail("Workers of this database have crashed %d times in a row, and the "
                                 "server with them; the last was \"%s\", with signal %d.",
                                 note->count, NameForLog(NameStr(note->name)).text, note->signal)
                     : errdetail("It has crashed %d times in a row, and the server with it; the "
                                 "last time with signal %d.",
                                 note->count, note->signal),
                 errhint("See the server log or a core dump. A restart of the server starts it at "
                         "once.")));
    }
    return until == 0 ? 0 : until - GetCurrentTimestamp();
}

long start_child(Child* child, const WorkerIdentity& identity, const char* name, Oid account) {
    // An existing worker that an earlier parent started wakes this process when it ends.
    if (child_lives(child) || find_slot(identity) >= 0) {
        forget_child(child, identity);
        return -1;
    }
    const Micros now = steady_now();
    const Micros affordable = child->paid_until - (starts_at_once - 1) * time_per_start;
    const Micros held_back = now + time_until_crashes_are_forgotten(child, identity, name);
    const Micros due = Max(Max(child->not_before, affordable), held_back);
    if (due > now) {
        if (child->deaths > 1 && child->not_before > now) {
            show_absent(child, identity, name, account, Refusal::none, due - now);
            complain(child, identity, name, Complaint::ends_early);
        }
        return milliseconds_until(due, now);
    }

    const Refusal refusal = launch(child, identity, name, account);
    switch (refusal) {
        case Refusal::none:
            child->started_at = now;
            child->paid_until = Max(child->paid_until, now) + time_per_start;
            forget_child(child, identity);
            return -1;
        case Refusal::database_is_held:  // the end of the hold wakes this process
            return wait_for_room / 1000;
        case Refusal::no_slot:
        case Refusal::no_process:
            child->not_before = now + child->pause;
            complain(child, identity, name, Complaint::no_room, refusal);
            break;
        case Refusal::role_has_most:
            if (identity.kind == WorkerKind::keeper)
                complain(child, identity, name, Complaint::no_room, refusal);
            break;
        case Refusal::database_has_most:
            break;
    }
    const Micros pause = child->not_before > now ? child->pause : wait_for_room;
    show_absent(child, identity, name, account, refusal, pause);
    return milliseconds_until(now + pause, now);
}

long shorter_timeout(long a, long b) {
    if (a < 0)
        return b;
    return b < 0 ? a : Min(a, b);
}

// ---------------------------------------------------------------------------------------------
// Being a worker
// ---------------------------------------------------------------------------------------------

static emit_log_hook_type previous_emit_log_hook = nullptr;

// SIGTERM is the usual end of a worker: its database is dropped, the server shuts down, nothing is
// left to do. In the log of the server FATAL would look like a failure. The worker ends all the same.
static void report_end_quietly(ErrorData* report) {
    if (report->elevel == FATAL && report->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
        report->elevel = LOG;
    if (previous_emit_log_hook)
        previous_emit_log_hook(report);
}

// The defaults of the database and of the role are meant for applications. A worker sets what it depends
// on, whatever they are.
struct WorkerSetting {
    const char* name;
    const char* value;
};

static constexpr WorkerSetting settings_of_workers[] = {
    // That of the worker has the rights it needs. Another may be the default role of the database.
    {"role", "none"},
    // A worker must see what others commit meanwhile, and always writes something.
    {"default_transaction_isolation", "read committed"},
    {"default_transaction_read_only", "off"},
    {"default_transaction_deferrable", "off"},
    // It would end the process.
    {"transaction_timeout", "0"},
    // Many short statements: compiling them takes longer than they do. A handler that gains by it can have
    // it: CREATE FUNCTION ... SET jit = on.
    {"jit", "off"},
};

// A worker that acts as a superuser has these as well. Handlers of a processor have those of their role.
static constexpr WorkerSetting settings_of_own_work[] = {
    // Roles that may create objects must not make a superuser find them by name.
    {"search_path", "pg_catalog, pg_temp"}, {"lock_timeout", "0"},
    {"quote_all_identifiers", "off"},       {"standard_conforming_strings", "on"},
    {"session_replication_role", "origin"},
};

// The server may be of a major version without the setting.
static void set_all(std::span<const WorkerSetting> settings) {
    for (const WorkerSetting& setting : settings)
        if (GetConfigOption(setting.name, true, false) != nullptr)
            SetConfigOption(setting.name, setting.value, PGC_SUSET, PGC_S_OVERRIDE);
}

static void connect(Oid database, Oid role) {
    previous_emit_log_hook = emit_log_hook;
    emit_log_hook = report_end_quietly;
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnectionByOid(database, role, 0);
    pgstat_report_appname(MyBgworkerEntry->bgw_name);
    set_all(settings_of_workers);
    if (!OidIsValid(role))
        set_all(settings_of_own_work);
}

void become_worker(Datum argument, WakeTarget wake_target) {
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    pqsignal(SIGTERM, die);
    // This comes before connecting. Exit callbacks run last in, first out, so the slot is given
    // back after the locks.
    attach_to_slot(argument, wake_target);
    connect(shared->slots[my_slot].database, shared->slots[my_slot].role);
}

void become_worker_without_slot(Oid database) {
    pqsignal(SIGTERM, die);
    connect(database, InvalidOid);
}

void begin_work(const char* activity) {
    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    PushActiveSnapshot(GetTransactionSnapshot());
    pgstat_report_activity(STATE_RUNNING, activity);
}

void begin_work_on_changes(const char* activity) {
    begin_work(activity);
    InvalidateSystemCaches();
}

void end_work() {
    PopActiveSnapshot();
    CommitTransactionCommand();
    pgstat_report_stat(false);
    pgstat_report_activity(STATE_IDLE, nullptr);
}

bool lock_extension(const char* name) {
    const Oid extension = get_extension_oid(name, true);
    if (!OidIsValid(extension))
        return false;
    LockDatabaseObject(ExtensionRelationId, extension, 0, AccessShareLock);
    return get_extension_oid(name, true) == extension;
}

bool begin_sql_work(const char* activity, const char* extension) {
    begin_work(activity);
    if (!lock_extension(extension)) {
        end_work();
        return false;
    }
    SPI_connect();
    return true;
}

void end_sql_work() {
    SPI_finish();
    end_work();
}

bool handle_signals() {
    CHECK_FOR_INTERRUPTS();
    if (!ConfigReloadPending)
        return false;
    ConfigReloadPending = false;
    ProcessConfigFile(PGC_SIGHUP);
    return true;
}

void wait_for_latch(long timeout, const char* wait_event_name) {
    if (my_slot >= 0 && reload_is_due())
        return;
    WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (timeout >= 0 ? WL_TIMEOUT : 0),
              timeout, compat::wait_event(wait_event_name));
    ResetLatch(MyLatch);
}

}  // namespace outbox
