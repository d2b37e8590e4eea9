// The keeper looks after one database: a relay for each destination, a processor for each consumer,
// a worker for each backfill, and the segments of the log (segments.cpp).
//
// It works when it is woken: a destination, subscription or extension changed (hooks.cpp,
// inbox.wake), a worker of it ended, a relay came on, or the configuration was reloaded. It runs
// nobody's code: what it reads from tables of pg_inbox, whose owner need not be trusted, it reads
// row by row without SQL.
#include "server/consumers.hpp"
#include "server/segments.hpp"
#include "server/worker.hpp"
#include "settings.hpp"
#include "version.hpp"

namespace outbox {

// A relay, processor or worker of a backfill that should live.
struct Ward {
    WorkerIdentity identity;  // hash key
    NameData name;
    bool wanted;
    Child worker;
};

static HTAB* wards = nullptr;

template <class Visit>
static void for_each_ward(Visit visit) {
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, wards);
    while (auto* ward = static_cast<Ward*>(hash_seq_search(&all)))
        visit(ward);
}

static void want(WorkerKind kind, Oid object, Oid role, const char* name) {
    const WorkerIdentity identity = {kind, MyDatabaseId, object, role};
    bool found;
    auto* ward = static_cast<Ward*>(hash_search(wards, &identity, HASH_ENTER, &found));
    if (!found)
        init_child(&ward->worker);
    namestrcpy(&ward->name, name);
    ward->wanted = true;
    ward->worker.not_before = 0;  // something changed: perhaps what was wrong with it
}

// ---------------------------------------------------------------------------------------------
// What there is to look after
// ---------------------------------------------------------------------------------------------

// Events of a pull destination are fetched: outbox.fetch().
static bool is_pull(Oid server) {
    const ForeignServer* destination = GetForeignServerExtended(server, FSV_MISSING_OK);
    ListCell* cell;
    foreach (cell, destination != nullptr ? destination->options : NIL) {
        DefElem* option = lfirst_node(DefElem, cell);
        if (strcmp(option->defname, "url") == 0)
            return strcmp(defGetString(option), "pull:") == 0;
    }
    return false;
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
        if (!is_pull(server->oid))
            want(WorkerKind::relay, server->oid, InvalidOid, NameStr(server->srvname));
    }
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);

    if (!any && settings::default_destination[0] != '\0' &&
        strcmp(settings::default_destination, "pull:") != 0)
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
        "SELECT id, id::text FROM outbox.backfill_task WHERE state = 'running'", true, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not look for backfills: %s", SPI_result_code_string(code));
    for (uint64 i = 0; i < SPI_processed; i++) {
        bool is_null;
        const Datum id = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &is_null);
        want(WorkerKind::backfill, static_cast<Oid>(DatumGetInt64(id)), InvalidOid,
             SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2));
    }
    SPI_finish();
}

// The log is left alone while its SQL objects are of a version that is not ours.
static bool log_fits = true;

static void look_at_version() {
    VersionProblem problem;
    const bool fitted = log_fits;
    log_fits = !find_version_problem(problem);
    if (log_fits)
        return;
    set_my_error(problem.message);
    if (fitted)  // once
        ereport(LOG, (errmsg("events of this database are not delivered"),
                      errdetail("%s.", problem.message), errhint("%s", problem.hint)));
}

// Returns false when nothing is installed that needs a keeper.
static bool look_around() {
    for_each_ward([](Ward* ward) { ward->wanted = false; });
    begin_work_on_changes("looking for destinations and consumers");
    const bool outbox = lock_extension("pg_outbox");
    const bool inbox = lock_extension("pg_inbox");
    if (outbox) {
        look_at_version();
        if (log_fits) {
            want_relays();
            want_backfills();
        }
    }
    if (inbox)
        want_processors();
    end_work();
    return outbox || inbox;
}

// ---------------------------------------------------------------------------------------------
// Looking after it
// ---------------------------------------------------------------------------------------------

// Workers whose object is gone end; those that an earlier keeper started are found in their slots.
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
        if (!ward->wanted && !child_lives(&ward->worker))
            hash_search(wards, &ward->identity, HASH_REMOVE, nullptr);
    });
}

static long start_wanted() {
    long timeout = -1;
    for_each_ward([&](Ward* ward) {
        if (ward->wanted)
            timeout = shorter_timeout(
                timeout, start_child(&ward->worker, ward->identity, NameStr(ward->name)));
    });
    return timeout;
}

// DROP EXTENSION: all workers of the database end, and then so does the keeper.
static void leave() {
    while (terminate_workers(MyDatabaseId, WorkerKind::relay) +
               terminate_workers(MyDatabaseId, WorkerKind::processor) +
               terminate_workers(MyDatabaseId, WorkerKind::backfill) >
           0) {
        wait_for_latch(100, "OutboxKeeperLeave");
        handle_signals();
    }
    proc_exit(0);
}

// Relays say when the log has grown or was settled, and are not listened to again for this long.
static constexpr int milliseconds_between_tending = 1'000;

// Returns after how many milliseconds to come back, or -1.
static long tend_segments_when_due(bool at_once) {
    static TimestampTz tended_at = 0;
    static TimestampTz due = DT_NOEND;
    const TimestampTz now = GetCurrentTimestamp();
    if (work_is_due())
        due = Min(due, TimestampTzPlusMilliseconds(tended_at, milliseconds_between_tending));
    if (at_once || now >= due) {
        begin_looking();
        due = tend_segments();
        tended_at = now;
    }
    return due == DT_NOEND ? -1 : Max(1, TimestampDifferenceMilliseconds(now, due));
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

    bool look = true;
    while (true) {
        const bool changed = reload_requested() || look;
        if (changed) {
            if (!look_around())
                leave();
            set_my_state(log_fits ? WorkerState::idle : WorkerState::misconfigured);
            wake_launcher();  // it may be waiting to have fewer keepers looking
        }
        end_unwanted();
        long timeout = start_wanted();
        if (log_fits)
            timeout = shorter_timeout(timeout, tend_segments_when_due(changed));
        wait_for_latch(timeout, "OutboxKeeperMain");
        look = handle_signals();
    }
}
