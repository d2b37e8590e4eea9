// The keeper looks after one database: a relay for each destination, a processor for each consumer,
// a worker for each backfill, and the segments of the log (segments.cpp).
//
// It sleeps until it is woken: a destination, subscription or extension changed (hooks.cpp,
// inbox.wake), one of its workers ended, a relay made progress, or the configuration was reloaded.
// It runs no code of other roles: it reads the tables of pg_inbox, whose owner need not be trusted,
// row by row without SQL.
#include <algorithm>

#include "bgworker/base/arriving_shards.hpp"
#include "bgworker/base/query_result.hpp"
#include "bgworker/base/worker.hpp"
#include "bgworker/keeper/consumers.hpp"
#include "bgworker/keeper/segments.hpp"
#include "extension/base/settings.hpp"
#include "extension/base/version.hpp"
#include "sinks/registry.hpp"

namespace outbox {

// A relay, processor or worker of a backfill that should live.
struct Ward {
    WorkerIdentity identity;  // hash key
    NameData name;
    Oid account;   // the role it counts for; invalid if none has a limit
    uint64 since;  // number in the order in which they were first wanted
    bool wanted;
    Child worker;
};

static HTAB* wards = nullptr;

// Any role can make the keeper look (inbox.wake), but not more often than this.
static constexpr Micros time_between_looks = milliseconds(100);
// Longest wait for a lock on the tables of pg_inbox. After that the keeper comes back later.
static constexpr const char* lock_timeout_for_consumers = "500ms";
static constexpr Micros time_to_trouble = seconds(5);

template <class Visit>
static void for_each_ward(Visit visit) {
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, wards);
    while (auto* ward = static_cast<Ward*>(hash_seq_search(&all)))
        visit(ward);
}

// `owner` is the role it counts for, if that is not the role that it runs as.
static void want(WorkerKind kind, Oid object, Oid role, const char* name, Oid owner = InvalidOid) {
    static uint64 wanted_so_far = 0;
    const WorkerIdentity identity = {kind, MyDatabaseId, object, role};
    bool found;
    auto* ward = static_cast<Ward*>(hash_search(wards, &identity, HASH_ENTER, &found));
    if (!found) {
        init_child(&ward->worker);
        ward->since = ++wanted_so_far;
    }
    namestrcpy(&ward->name, name);
    const Oid account = OidIsValid(owner) ? owner : role;
    ward->account = OidIsValid(account) && !superuser_arg(account) ? account : InvalidOid;
    ward->wanted = true;
    ward->worker.not_before = 0;  // the change may have repaired it
}

// ---------------------------------------------------------------------------------------------
// Objects to look after
// ---------------------------------------------------------------------------------------------

// Pull destinations have no relay: outbox.fetch() returns their events.
static bool is_fetched(const char* url) {
    const SinkDeclaration* sink = sink_of_url(url);
    return sink != nullptr && sink->is_fetched();
}

// True if a worker of this server delivers its events. outbox-relay serves those with the option
// relay 'external'.
static bool has_relay(Oid server) {
    const ForeignServer* destination = GetForeignServerExtended(server, FSV_MISSING_OK);
    ListCell* cell;
    foreach (cell, destination != nullptr ? destination->options : NIL) {
        DefElem* option = lfirst_node(DefElem, cell);
        if (strcmp(option->defname, "url") == 0 && is_fetched(defGetString(option)))
            return false;
        if (strcmp(option->defname, "relay") == 0 && strcmp(defGetString(option), "external") == 0)
            return false;
    }
    return true;
}

static void want_relays() {
    const Oid wrapper = get_foreign_data_wrapper_oid("pg_outbox", true);
    bool any = false;
    Relation catalog = table_open(ForeignServerRelationId, AccessShareLock);
    SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, nullptr, 0, nullptr);
    while (HeapTuple tuple = systable_getnext(scan)) {
        const auto* server = reinterpret_cast<Form_pg_foreign_server>(GETSTRUCT(tuple));
        if (server->srvfdw != wrapper)
            continue;
        any = true;
        if (has_relay(server->oid))
            want(WorkerKind::relay, server->oid, InvalidOid, NameStr(server->srvname),
                 server->srvowner);
    }
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);

    if (!any && settings::default_destination[0] != '\0' &&
        !is_fetched(settings::default_destination))
        want(WorkerKind::relay, InvalidOid, InvalidOid, "default");
}

static void want_processors() {
    visit_runnable_consumers([](const RunnableConsumer& consumer) {
        want(WorkerKind::processor, static_cast<Oid>(consumer.id), consumer.role, consumer.name);
    });
}

static void want_backfills() {
    SPI_connect();
    const int code = SPI_execute(
        "SELECT t.id, t.id::text, t.role::oid FROM outbox.backfill_task AS t "
        "WHERE t.state = 'running' AND t.id IS NOT NULL ORDER BY t.id",
        true, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not look for backfills: %s", SPI_result_code_string(code));
    check_result("backfill_task", {INT8OID, TEXTOID, OIDOID});
    for (uint64 i = 0; i < SPI_processed; i++) {
        const Datum id = required_value("backfill_task", i, 1);
        const Datum name = required_value("backfill_task", i, 2);
        bool is_null;
        const Datum role = result_value(i, 3, &is_null);
        want(WorkerKind::backfill, static_cast<Oid>(DatumGetInt64(id)), InvalidOid,
             TextDatumGetCString(name), is_null ? InvalidOid : DatumGetObjectId(role));
    }
    SPI_finish();
}

// Returns whether the events of this database are this installation's to deliver: see
// sql/pg_outbox/copy.sql. What it is a copy of is logged once.
static bool may_deliver() {
    static char logged[256] = "";
    SPI_connect();
    const int code = SPI_execute(
        "SELECT outbox_internal.recognize(outbox_internal.own_identity(), external => false)",
        false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not look for the installation: %s", SPI_result_code_string(code));
    check_result_row("recognize", {TEXTOID});
    bool is_original;
    const Datum value = result_value(0, 1, &is_original);
    const char* copy = is_original ? "" : TextDatumGetCString(value);
    if (!is_original && strncmp(copy, logged, sizeof logged - 1) != 0)
        ereport(LOG, (errmsg_internal("nothing is delivered from database \"%s\": %s",
                                      get_database_name(MyDatabaseId), copy),
                      errhint("If it is to deliver, call outbox.claim_identity().")));
    strlcpy(logged, copy, sizeof logged);
    SPI_finish();
    return is_original;
}

// False while the SQL objects are of a version that does not fit. The log, or the inbox, is then
// left alone.
static bool log_fits = true;
static bool inbox_fits = true;

static void look_at_version(const char* extension, bool& fits, const char* consequence) {
    VersionProblem problem;
    const bool fitted = fits;
    fits = !find_version_problem(extension, problem);
    if (fits)
        return;
    set_my_error(problem.message);
    if (fitted)  // logged once
        ereport(LOG, (errmsg_internal("%s", consequence), errdetail("%s.", problem.message),
                      errhint("%s", problem.hint)));
}

// Does work in a transaction of its own that must not hurt the rest of the database if it fails: an error
// is only logged. Returns whether there was none.
template <class Work>
static bool try_work(const char* activity, Work work) {
    volatile bool done = false;
    MemoryContext context = CurrentMemoryContext;
    PG_TRY();
    {
        begin_work(activity);
        work();
        end_work();
        done = true;
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        HOLD_INTERRUPTS();
        EmitErrorReport();
        AbortCurrentTransaction();
        FlushErrorState();
        RESUME_INTERRUPTS();
        pgstat_report_activity(STATE_IDLE, nullptr);
    }
    PG_END_TRY();
    return done;
}

// Reads the consumers. The tables of pg_inbox may belong to a role that locks or alters them. After an
// error the consumers known before stay wanted. Returns whether there was one.
static bool look_for_consumers() {
    for_each_ward([](Ward* ward) {
        if (ward->identity.kind == WorkerKind::processor)
            ward->wanted = false;
    });
    SetConfigOption("lock_timeout", lock_timeout_for_consumers, PGC_SUSET, PGC_S_OVERRIDE);
    const bool trouble = !try_work("looking for consumers", [] {
        if (lock_extension("pg_inbox"))
            want_processors();
    });
    SetConfigOption("lock_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
    if (trouble)
        for_each_ward([](Ward* ward) {
            if (ward->identity.kind == WorkerKind::processor)
                ward->wanted = true;
        });
    return trouble;
}

// True after consumers could not be read: the cause may pass.
static bool look_again = false;

static bool any_processor_is_wanted() {
    bool any = false;
    for_each_ward([&](const Ward* ward) {
        any |= ward->identity.kind == WorkerKind::processor && ward->wanted;
    });
    return any;
}

// Whether the database needs a keeper. `later` is for a pg_inbox without a consumer to process for: any
// role that may create databases can have many of them, and each keeper takes a background worker.
enum class Need { nothing, later, now };

static Need look_around() {
    for_each_ward([](Ward* ward) {
        if (ward->identity.kind != WorkerKind::processor)
            ward->wanted = false;
    });
    begin_work_on_changes("looking for destinations and backfills");
    const bool outbox = lock_extension("pg_outbox");
    const bool inbox = lock_extension("pg_inbox");
    if (inbox)
        look_at_version("pg_inbox", inbox_fits, "messages of this database are not processed");
    if (outbox) {
        look_at_version("pg_outbox", log_fits, "events of this database are not delivered");
        if (log_fits) {
            if (may_deliver())
                want_relays();
            want_backfills();
        }
    }
    end_work();
    if (inbox && inbox_fits)
        look_again = look_for_consumers();
    else
        for_each_ward([](Ward* ward) {
            if (ward->identity.kind == WorkerKind::processor)
                ward->wanted = false;
        });
    if (outbox || !inbox)
        return outbox ? Need::now : Need::nothing;
    const bool needed =
        !inbox_fits || look_again || any_processor_is_wanted() || remembers_refusals();
    return needed ? Need::now : Need::later;
}

// ---------------------------------------------------------------------------------------------
// Looking after them
// ---------------------------------------------------------------------------------------------

// Ends workers whose object is gone. Those that an earlier keeper started are found by their slots.
static void end_unwanted() {
    const int used = shared->slots_used;
    for (int i = 0; i < used; i++) {
        LWLockAcquire(shared->lock, LW_SHARED);
        const WorkerSlot& slot = shared->slots[i];
        const WorkerIdentity identity = {slot.kind, slot.database, slot.object, slot.role};
        const bool ours = slot.database == MyDatabaseId && slot.kind > WorkerKind::keeper;
        LWLockRelease(shared->lock);
        if (!ours)
            continue;
        const auto* ward = static_cast<Ward*>(hash_search(wards, &identity, HASH_FIND, nullptr));
        if (ward == nullptr || !ward->wanted)
            terminate_worker(i);
    }
    for_each_ward([](Ward* ward) {
        if (ward->wanted || child_lives(&ward->worker))
            return;
        forget_child(&ward->worker, ward->identity);
        hash_search(wards, &ward->identity, HASH_REMOVE, nullptr);
    });
}

static bool wanted_first(const Ward* a, const Ward* b) {
    return a->since < b->since;
}

// The worker that has waited longest gets the first chance of a free slot.
static long start_wanted() {
    const long count = hash_get_num_entries(wards);
    auto** queue = static_cast<Ward**>(palloc(sizeof(Ward*) * Max(1, count)));
    Ward** end = queue;
    for_each_ward([&](Ward* ward) {
        if (ward->wanted)
            *end++ = ward;
    });
    std::sort(queue, end, wanted_first);
    long timeout = -1;
    for (Ward** ward = queue; ward != end; ward++)
        timeout = shorter_timeout(timeout, start_child(&(*ward)->worker, (*ward)->identity,
                                                       NameStr((*ward)->name), (*ward)->account));
    pfree(queue);
    return timeout;
}

// Waits also while a reload is due, because it may be too early to look again.
static void wait(long timeout, const char* wait_event_name) {
    WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (timeout >= 0 ? WL_TIMEOUT : 0),
              timeout, compat::wait_event(wait_event_name));
    ResetLatch(MyLatch);
}

// Time between looks for changes of which nobody told: they were prepared before a restart, or did
// not fit into the shared state.
static long milliseconds_between_polls() {
    return Min(10L * settings::poll_max, INT_MAX);
}

// Ends all workers of the database, and then the keeper. Unless nothing is installed, the launcher asks
// again later, like a keeper that polls.
[[noreturn]] static void leave(Need need) {
    while (terminate_workers(MyDatabaseId, WorkerKind::relay) +
               terminate_workers(MyDatabaseId, WorkerKind::processor) +
               terminate_workers(MyDatabaseId, WorkerKind::backfill) >
           0) {
        wait(100, "OutboxKeeperLeave");
        handle_signals();
    }
    forget_absent_of(MyDatabaseId);
    shared->slots[my_slot].ask_again_in = need == Need::later ? milliseconds_between_polls() : -1;
    proc_exit(0);
}

// When to ask other nodes of a Citus cluster about shards that have moved here.
static Micros shards_due = never;
static constexpr int milliseconds_for_answers = 2'000;
static constexpr int milliseconds_to_ask_again = 5'000;

static void look_for_shards() {
    if (shards_due != never)
        return;
    begin_work("looking for shards");
    if (any_shard_arrives())
        shards_due = steady_now();
    end_work();
}

// Returns milliseconds, or -1 if no shard is expected any more.
static long ask_about_shards() {
    SPI_connect();
    const int code =
        SPI_execute("SELECT (1000 * outbox_internal.look_after_shards())::bigint", false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not ask about shards: %s", SPI_result_code_string(code));
    check_result("arriving_shard", {INT8OID});
    bool none;
    const Datum milliseconds = result_value(0, 1, &none);
    const long timeout = none ? -1 : static_cast<long>(DatumGetInt64(milliseconds));
    SPI_finish();
    return timeout;
}

// The answer may take a while, and this process has other things to do.
static void give_up_asking() {
    QueryCancelPending = true;
    InterruptPending = true;
    SetLatch(MyLatch);
}

static long ask_about_shards_when_due(bool at_once) {
    if (at_once || work_is_due())
        look_for_shards();
    if (const Micros now = steady_now(); now < shards_due)
        return milliseconds_until(shards_due, now);
    static const TimeoutId limit = RegisterTimeout(USER_TIMEOUT, give_up_asking);
    volatile long timeout = milliseconds_to_ask_again;
    enable_timeout_after(limit, milliseconds_for_answers);
    try_work("asking other nodes about shards",
             [&timeout] { timeout = lock_extension("pg_outbox") ? ask_about_shards() : -1; });
    disable_timeout(limit, false);
    QueryCancelPending = false;
    shards_due = timeout < 0 ? never : steady_now() + milliseconds(timeout);
    return timeout;
}

// Relays tell the keeper of progress. It tends the log at most once in this time.
static constexpr Micros time_between_tending = seconds(1);

// Returns the milliseconds after which to come back, or -1.
static long tend_segments_when_due(bool at_once) {
    static Micros tended_at = 0;
    static Micros due = never;
    const auto note_progress = [] {
        if (work_is_due())
            due = Min(due, tended_at + time_between_tending);
    };
    note_progress();
    const Micros now = steady_now();
    if (at_once || now >= due) {
        begin_looking();
        due = tend_segments();
        tended_at = now;
        note_progress();  // a wait for a lock may have reset the latch
    }
    return milliseconds_until(due, now);
}

}  // namespace outbox

extern "C" PGDLLEXPORT void outbox_keeper_main(Datum argument) {
    using namespace outbox;

    become_worker(argument, WakeKeeper);
    HASHCTL control;
    memset(&control, 0, sizeof control);
    control.keysize = sizeof(WorkerIdentity);
    control.entrysize = sizeof(Ward);
    wards = hash_create("outbox wards", 16, &control, HASH_ELEM | HASH_BLOBS);

    forget_absent_of(MyDatabaseId);

    bool look = true;
    Micros looked_at = 0;
    while (true) {
        const Micros since = steady_now() - looked_at;
        const bool polls = looked_at != 0 && since >= milliseconds(milliseconds_between_polls());
        const bool changed = look || polls || (since >= time_between_looks && reload_requested()) ||
                             (look_again && since >= time_to_trouble);
        if (changed) {
            // A consumer that goes and comes back soon finds the keeper.
            const Need need = look_around();
            if (need == Need::nothing || (need == Need::later && (looked_at == 0 || polls)))
                leave(need);
            if (polls)
                tell_workers_to_look();
            looked_at = steady_now();
            set_my_state(log_fits ? WorkerState::idle : WorkerState::misconfigured);
            wake_launcher();  // it may wait until fewer keepers are looking
        }
        end_unwanted();
        long timeout = start_wanted();
        if (log_fits) {
            timeout = shorter_timeout(timeout, ask_about_shards_when_due(changed));
            timeout = shorter_timeout(timeout, tend_segments_when_due(changed));
        }
        timeout = shorter_timeout(timeout, milliseconds_between_polls());
        if (look_again)
            timeout = shorter_timeout(timeout, time_to_trouble / 1000);
        if (reload_is_due())
            timeout = shorter_timeout(timeout, time_between_looks / 1000);
        wait(timeout, "OutboxKeeperMain");
        look = handle_signals();
    }
}
