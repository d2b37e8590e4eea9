#include "extension/base/wakeup.hpp"

#include "extension/base/citus.hpp"
#include "extension/base/pg.hpp"
#include "extension/base/shared_state.hpp"

namespace outbox {

static std::uint32_t targets_at_commit = 0;
static Oid new_database = InvalidOid;

void wake_at_commit(std::uint32_t targets) noexcept {
    targets_at_commit |= targets;
}

void tell_of_database_at_commit(Oid database) noexcept {
    new_database = database;
}

// Kinds of changes, in the last bits of a hash. Any role can cause changes of consumers.
static constexpr std::uint64_t changes_all = 1, changes_consumers = 2;

static std::uint64_t being_prepared = 0;  // 0 if nothing

static std::uint64_t hash_of(const char* name) noexcept {
    return hash_bytes_extended(reinterpret_cast<const unsigned char*>(name),
                               static_cast<int>(strlen(name)), 0) &
           ~(changes_all | changes_consumers);
}

static bool replace_prepared(std::uint64_t from, std::uint64_t to) noexcept {
    for (std::atomic<std::uint64_t>& entry : shared->prepared_changes) {
        std::uint64_t expected = from;
        if (entry.compare_exchange_strong(expected, to))
            return true;
    }
    return false;
}

// The commit of a prepared transaction may run in another session. So PREPARE leaves a hash of the
// name in shared memory, and the commit takes it back.
void note_prepare(const char* name) noexcept {
    being_prepared = hash_of(name) | changes_all;
}

void note_prepared_end(const char* name, bool commits) noexcept {
    const bool all = shared != nullptr && replace_prepared(hash_of(name) | changes_all, 0);
    const bool consumers =
        shared != nullptr && replace_prepared(hash_of(name) | changes_consumers, 0);
    if (!commits)
        return;
    wake_at_commit(WakeRelays | WakeProcessors);  // it may have prepared events
    if (all)
        wake_at_commit(WakeKeeper);
    if (consumers)
        wake_at_commit(WakeConsumers);
}

static void wake_process(std::int32_t process) noexcept {
    // If the process is gone, this wakes the process that has its number now, or none. Both are
    // harmless.
    if (process >= 0)
        SetLatch(&ProcGlobal->allProcs[process].procLatch);
}

void wake_launcher() noexcept {
    if (shared != nullptr)
        wake_process(shared->launcher.load(std::memory_order_relaxed));
}

// Tells the launcher which database to look at, in case it has no keeper yet.
void mark_changed(Oid database) noexcept {
    for (std::atomic<Oid>& entry : shared->changed) {
        Oid expected = InvalidOid;
        if (entry.compare_exchange_strong(expected, database) || expected == database)
            return;
    }
    shared->everything_changed.store(true);
}

// Makes workers of the kinds in `targets`, which include the keeper, read their configuration
// again, whether they are busy or not.
static void wake_for_change(std::uint32_t targets) noexcept {
    bool has_keeper = false;
    const int used = shared->slots_used.load(std::memory_order_relaxed);
    for (int i = 0; i < used; i++) {
        Wakeup& wakeup = shared->wakeups[i];
        if (wakeup.database != MyDatabaseId || (wakeup.kind & targets) == 0)
            continue;
        const bool is_keeper = wakeup.kind == WakeKeeper;
        wakeup.reload = true;
        wake_process(wakeup.process);
        // A keeper that leaves clears `database` and then reads `reload`. This side writes `reload`
        // and then reads `database`. So at least one of the two sees the other.
        has_keeper |= is_keeper && wakeup.database == MyDatabaseId;
    }
    if (!has_keeper) {
        mark_changed(MyDatabaseId);
        wake_launcher();
    }
}

void tell_workers_to_look() noexcept {
    wake_for_change(~0U);
}

static void wake_for_work(std::uint32_t targets) noexcept {
    // The commit must be visible before `wanted` is read: the worker writes `wanted` before it
    // looks. Pairs with the fence in begin_looking().
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const int used = shared->slots_used.load(std::memory_order_relaxed);
    for (int i = 0; i < used; i++) {
        Wakeup& wakeup = shared->wakeups[i];
        // While workers are busy the first test fails: no write, and no cache line that others
        // write.
        if (wakeup.wanted.load(std::memory_order_relaxed) &&
            wakeup.database.load(std::memory_order_relaxed) == MyDatabaseId &&
            (wakeup.kind.load(std::memory_order_relaxed) & targets) != 0 &&
            wakeup.wanted.exchange(false, std::memory_order_relaxed))
            wake_process(wakeup.process.load(std::memory_order_relaxed));
    }
}

void tell_keeper_of_progress() noexcept {
    wake_for_work(WakeKeeper | WakeBackfills);
}

static void wake_at_transaction_end(XactEvent event, void*) {
    switch (event) {
        case XACT_EVENT_PRE_COMMIT:  // callbacks of libraries loaded before this one come later
            if (targets_at_commit & WakeRelays)
                citus::commit_in_two_phases();
            return;
        case XACT_EVENT_COMMIT:
            if (shared == nullptr)
                break;
            if (OidIsValid(new_database)) {
                mark_changed(new_database);
                wake_launcher();
            }
            // Any role can ask for the second. So it does not interrupt relays.
            if (targets_at_commit & WakeKeeper)
                wake_for_change(~0U);
            else if (targets_at_commit & WakeConsumers)
                wake_for_change(WakeKeeper | WakeProcessors);
            if (targets_at_commit & WakeSegments)
                tell_keeper_of_progress();
            if (targets_at_commit != 0)
                wake_for_work(targets_at_commit);
            break;
        case XACT_EVENT_PREPARE:  // COMMIT PREPARED wakes them: see hooks.cpp
            if (shared == nullptr || being_prepared == 0)
                break;
            if (targets_at_commit & WakeKeeper)
                replace_prepared(0, being_prepared);
            else if (targets_at_commit & WakeConsumers)
                replace_prepared(0, being_prepared + changes_consumers - changes_all);
            break;
        case XACT_EVENT_ABORT:
            break;
        default:
            return;
    }
    targets_at_commit = 0;
    being_prepared = 0;
    new_database = InvalidOid;
    release_hold();
}

void register_transaction_callback() {
    citus::find();
    RegisterXactCallback(wake_at_transaction_end, nullptr);
}

}  // namespace outbox

// For fetchers of pull destinations. The call also loads the library, whose settings SQL functions
// read by name.
OUTBOX_FUNCTION(outbox_wake_keeper) {
    outbox::wake_at_commit(outbox::WakeSegments);
    PG_RETURN_VOID();
}
