#include "extension/base/wake_outside.hpp"

#include "core/advisory_locks.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

static constexpr const char* channel = "outbox_wake";

// Says if the database has a destination with the option relay 'external'. Unknown after a foreign
// server has changed.
enum class Known { no, absent, present };
static Known outside = Known::no;

enum class Asked { no, shares_lock, notifies };
static Asked asked = Asked::no;
static bool registered = false;

static void forget(Datum, int, uint32) {
    outside = Known::no;
}

static bool is_external(Oid server) {
    const ForeignServer* destination = GetForeignServerExtended(server, FSV_MISSING_OK);
    ListCell* cell;
    foreach (cell, destination != nullptr ? destination->options : NIL) {
        DefElem* option = lfirst_node(DefElem, cell);
        if (strcmp(option->defname, "relay") == 0 && strcmp(defGetString(option), "external") == 0)
            return true;
    }
    return false;
}

static bool find_external() {
    const Oid wrapper = get_foreign_data_wrapper_oid("pg_outbox", true);
    Relation catalog = table_open(ForeignServerRelationId, AccessShareLock);
    SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, nullptr, 0, nullptr);
    bool found = false;
    while (HeapTuple tuple = found ? nullptr : systable_getnext(scan)) {
        const auto* server = reinterpret_cast<Form_pg_foreign_server>(GETSTRUCT(tuple));
        found = server->srvfdw == wrapper && is_external(server->oid);
    }
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);
    return found;
}

void wake_outside_at_commit() {
    if (asked != Asked::no || !registered)
        return;
    if (outside == Known::no)
        outside = find_external() ? Known::present : Known::absent;
    if (outside == Known::absent)
        return;
    LOCKTAG tag;
    SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, lock_class, wake_lock, 2);
    // A full lock table counts as a relay that sleeps: an enqueue must not fail because of it.
    asked = compat::try_lock(tag, ShareLock) ? Asked::shares_lock : Asked::notifies;
}

// A transaction that is prepared cannot notify; the relay finds its events when it polls.
static void notify_at_transaction_end(XactEvent event, void*) {
    switch (event) {
        case XACT_EVENT_PRE_COMMIT:
            if (asked == Asked::notifies)
                Async_Notify(channel, "");
            break;
        case XACT_EVENT_COMMIT:
        case XACT_EVENT_PREPARE:
        case XACT_EVENT_ABORT:
            asked = Asked::no;
            break;
        default:
            break;
    }
}

// After ROLLBACK TO a savepoint the lock may be gone.
static void at_subtransaction_end(SubXactEvent event, SubTransactionId, SubTransactionId, void*) {
    if (event == SUBXACT_EVENT_ABORT_SUB && asked == Asked::shares_lock)
        asked = Asked::no;
}

void register_wake_outside() {
    CacheRegisterSyscacheCallback(FOREIGNSERVEROID, forget, Datum{0});
    RegisterXactCallback(notify_at_transaction_end, nullptr);
    RegisterSubXactCallback(at_subtransaction_end, nullptr);
    registered = true;
}

}  // namespace outbox
