
#include "bgworker/base/worker.hpp"

// The shared catalogs do not show which databases have an extension of ours. So the launcher starts
// a keeper in every database it does not know. A keeper that finds nothing to look after leaves
// with exit code 0, and the database is then left alone. It is marked as changed when something in
// it changes (hooks.cpp), or when its keeper dies with another exit code. New databases are looked
// at once, and at the start all databases are.
//
// Case by case:
//   CREATE EXTENSION commits          the hook marks the database and wakes the launcher, which
//                                     starts a keeper
//   CREATE EXTENSION rolls back       nothing was marked
//   DROP EXTENSION commits            the hook wakes the keeper, which leaves
//   pg_inbox without consumers        the keeper leaves and says when to ask again; a new consumer marks
//                                     the database, as CREATE EXTENSION does
//   DROP / RENAME / copy of database  the hook holds the database: keepers leave, none starts; when
//                                     the statement ends, in whatever way, the database is marked
//   keeper is terminated or fails     its launcher sees it, or the keeper marks the database;
//                                     another starts after a pause
//   launcher is terminated or fails   the postmaster starts another; it finds living keepers in
//                                     their slots and leaves them alone
//   a process is killed by force      the server starts over, and the launcher with it

namespace outbox {

// Many databases may not have the extension. Keepers that only look and leave must not fill the
// server.
static constexpr int keepers_looking_at_once = 4;
// A keeper that looks for longer than this waits for something in its database. The other databases
// must not wait for it.
static constexpr Micros time_to_look = seconds(5);
// Any role can make the launcher look for databases, but not more often than this.
static constexpr Micros time_between_scans = milliseconds(100);

struct DatabaseEntry {
    Oid database;  // hash key
    NameData name;
    Oid account;    // the role that its keeper counts for: its owner, unless that is a superuser
    bool exists;    // as of the last scan
    bool check;     // a keeper should look at it
    Micros ask_at;  // when one should look at the latest; `never` if a change has to come first
    Child keeper;
};

static HTAB* databases = nullptr;

template <class Visit>
static void for_each_database(Visit visit) {
    HASH_SEQ_STATUS all;
    hash_seq_init(&all, databases);
    while (auto* entry = static_cast<DatabaseEntry*>(hash_seq_search(&all)))
        visit(entry);
}

static WorkerIdentity keeper_of(Oid database) {
    return {WorkerKind::keeper, database, InvalidOid, InvalidOid};
}

static void note_database(const FormData_pg_database* row) {
    bool found;
    auto* entry =
        static_cast<DatabaseEntry*>(hash_search(databases, &row->oid, HASH_ENTER, &found));
    if (!found) {
        entry->check = true;
        entry->ask_at = never;
        init_child(&entry->keeper);
    }
    entry->name = row->datname;
    entry->account = superuser_arg(row->datdba) ? InvalidOid : row->datdba;
    entry->exists = true;
}

// DATCONNLIMIT_INVALID_DB of newer minor versions.
static constexpr int32 limit_of_invalid = -2;

// Updates the table of databases from pg_database.
static void scan_databases() {
    for_each_database([](DatabaseEntry* entry) { entry->exists = false; });

    begin_work("looking for databases");
    Relation catalog = table_open(DatabaseRelationId, AccessShareLock);
    TableScanDesc scan = table_beginscan_catalog(catalog, 0, nullptr);
    while (HeapTuple tuple = heap_getnext(scan, ForwardScanDirection)) {
        const auto* row = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple));
        // Templates are copied, and a connected worker would prevent that. A database whose DROP was
        // interrupted takes no connections.
        if (row->datallowconn && !row->datistemplate && row->datconnlimit != limit_of_invalid)
            note_database(row);
    }
    table_endscan(scan);
    table_close(catalog, AccessShareLock);
    end_work();

    for_each_database([](DatabaseEntry* entry) {
        if (entry->exists || child_lives(&entry->keeper))
            return;
        forget_child(&entry->keeper, keeper_of(entry->database));
        forget_absent_of(entry->database);
        hash_search(databases, &entry->database, HASH_REMOVE, nullptr);
    });
}

static void check_database(Oid database) {
    auto* entry =
        static_cast<DatabaseEntry*>(hash_search(databases, &database, HASH_FIND, nullptr));
    if (entry == nullptr)
        return;
    entry->check = true;
    entry->keeper.not_before = 0;
}

// Notices the end of a keeper. One that ended with an error is started again, one that had nothing to do
// when it said.
static bool keeper_lives(DatabaseEntry* entry) {
    const int slot = entry->keeper.slot;
    const bool lives = child_lives(&entry->keeper);
    if (slot >= 0 && !lives)
        if (const long pause = ask_again_in(slot, entry->keeper.ticket); pause >= 0)
            entry->ask_at = steady_now() + milliseconds(pause);
    entry->check |= entry->keeper.failed;
    entry->keeper.failed = false;
    return lives;
}

// Returns whether there were changes, so that the list of databases may have changed.
static bool take_changes() {
    bool any = false;
    for (std::atomic<Oid>& changed : shared->changed)
        if (const Oid database = changed.exchange(InvalidOid); OidIsValid(database)) {
            any = true;
            check_database(database);
        }
    if (shared->everything_changed.exchange(false)) {
        any = true;
        for_each_database([](DatabaseEntry* entry) { check_database(entry->database); });
    }
    return any;
}

// Starts the keepers that are wanted. Returns the milliseconds after which to come back, or -1.
static long tend_keepers() {
    int looking = 0;
    long timeout = -1;
    const Micros now = steady_now();
    for_each_database([&](DatabaseEntry* entry) {
        if (!keeper_lives(entry) ||
            shared->slots[entry->keeper.slot].state != WorkerState::starting)
            return;
        const Micros until = entry->keeper.started_at + time_to_look;
        if (until <= now)
            return;
        looking++;
        timeout = shorter_timeout(timeout, milliseconds_until(until, now));
    });

    for_each_database([&](DatabaseEntry* entry) {
        if (entry->ask_at <= now)
            entry->check = true;
        else
            timeout = shorter_timeout(timeout, milliseconds_until(entry->ask_at, now));
        if (!entry->exists || !entry->check || looking >= keepers_looking_at_once)
            return;
        const std::uint32_t before = entry->keeper.ticket;
        timeout = shorter_timeout(timeout, start_child(&entry->keeper, keeper_of(entry->database),
                                                       NameStr(entry->name), entry->account));
        // Only a keeper started now sees the change: one that lives may be about to leave.
        if (entry->keeper.ticket != before) {
            entry->check = false;
            entry->ask_at = never;
            looking++;
        }
    });
    return timeout;
}

static void forget_launcher(int, Datum) {
    std::int32_t me = compat::my_proc_number();
    shared->launcher.compare_exchange_strong(me, -1);
}

}  // namespace outbox

extern "C" PGDLLEXPORT void outbox_launcher_main(Datum) {
    using namespace outbox;

    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    pqsignal(SIGTERM, die);
    before_shmem_exit(forget_launcher, 0);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
    pgstat_report_appname(MyBgworkerEntry->bgw_name);
    shared->launcher = compat::my_proc_number();

    HASHCTL control;
    memset(&control, 0, sizeof control);
    control.keysize = sizeof(Oid);
    control.entrysize = sizeof(DatabaseEntry);
    databases = hash_create("outbox databases", 64, &control, HASH_ELEM | HASH_BLOBS);

    scan_databases();
    Micros next_scan = 0;
    while (true) {
        const Micros now = steady_now();
        long timeout = -1;
        if (now < next_scan) {
            timeout = milliseconds_until(next_scan, now);
        } else if (take_changes()) {
            scan_databases();
            next_scan = now + time_between_scans;
        }
        timeout = shorter_timeout(timeout, tend_keepers());
        wait_for_latch(timeout, "OutboxLauncherMain");
        handle_signals();
    }
}
