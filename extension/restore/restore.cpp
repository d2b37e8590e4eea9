// Keeps workers away while a dump is restored; sql/pg_outbox/restore.sql says why. Only the end of
// the session shows that a restore is complete.
#include "extension/base/shared_state.hpp"
#include "extension/log/log.hpp"

namespace outbox {

static void clear_of_workers() {
    ereport(LOG, (errmsg("workers of pg_outbox leave database \"%s\" until this session ends",
                         get_database_name(MyDatabaseId)),
                  errdetail("Events or cursors are being restored.")));
    while (terminate_workers(MyDatabaseId, WorkerKind::none) > 0) {
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    }
}

}  // namespace outbox

// Called for every row; acts only on the first.
OUTBOX_FUNCTION(outbox_begin_restore) {
    using namespace outbox;
    LockRelationOid(log_relations().ring, ShareRowExclusiveLock);
    // Without preloading there are no workers.
    if (shared != nullptr && hold_database_for_session(MyDatabaseId))
        clear_of_workers();
    PG_RETURN_VOID();
}
