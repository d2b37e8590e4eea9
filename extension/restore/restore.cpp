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

// Moves the sequence of positions up to a position, unless it has passed it. An enqueue must not get a
// position between the look and the change, or the sequence would step back: nextval() takes a lock that
// conflicts with this one, and keeps it until its transaction ends.
OUTBOX_FUNCTION(outbox_raise_position) {
    using namespace outbox;
    const Oid sequence = log_relations().positions;
    const int64 position = PG_GETARG_INT64(0);
    LockRelationOid(sequence, ShareRowExclusiveLock);
    LOCAL_FCINFO(call, 1);
    InitFunctionCallInfoData(*call, nullptr, 1, InvalidOid, nullptr, nullptr);
    call->args[0].value = ObjectIdGetDatum(sequence);
    call->args[0].isnull = false;
    const Datum last = pg_sequence_last_value(call);  // null if nothing was taken
    if (call->isnull || DatumGetInt64(last) < position)
        DirectFunctionCall2(setval_oid, ObjectIdGetDatum(sequence), Int64GetDatum(position));
    UnlockRelationOid(sequence, ShareRowExclusiveLock);
    PG_RETURN_VOID();
}
