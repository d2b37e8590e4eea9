// Snapshot events of existing rows: outbox.backfill() in sql/pg_outbox/backfill.sql.
//
// A row is locked before its event is written, and the event shows the locked version. A session
// that changes the row waits for that lock, or has committed before. So the events of one row have
// positions in the order of its versions. To avoid deadlocks this waits for no row lock: rows that
// are locked or were changed just now are reported to the caller.
#include <cmath>
#include <initializer_list>

#include "extension/base/owners_rights.hpp"
#include "extension/base/pg.hpp"
#include "extension/base/wakeup.hpp"
#include "extension/capture/capture.hpp"
#include "extension/capture/table_walk.hpp"
#include "extension/citus/citus_table.hpp"

namespace outbox {

static constexpr int rows_at_once = 100;  // written together; more would not be cheaper

// A table during a backfill, with everything that the walk needs.
struct Walk {
    Relation table;
    TableKey key;
    const Capture* capture;
    IndexScanDesc scan;
    TupleTableSlot* found;   // the row as the index found it
    TupleTableSlot* locked;  // the same row, locked
    int32 only_to;
    LogWriter writer;
};

static char* text_of_key(const TableKey& key, TupleTableSlot* row) {
    return OidOutputFunctionCall(F_ARRAY_OUT, key_of_row(key, row));
}

static void describe_row(void* argument) {
    const auto* walk = static_cast<const Walk*>(argument);
    errcontext("row %s of table \"%s\"", text_of_key(walk->key, walk->locked),
               RelationGetRelationName(walk->table));
}

// Adds the row to the context of errors, so that a failed backfill shows which row failed.
static void write_locked_row(Walk& walk) {
    ErrorContextCallback context = {error_context_stack, describe_row, &walk};
    error_context_stack = &context;
    write_snapshot(walk.writer, *walk.capture, walk.locked, walk.only_to);
    error_context_stack = context.previous;
}

// Returns false if the table is gone.
static bool open_table(Walk& walk, Oid table) {
    check_may_enqueue();
    walk.table = try_relation_open(table, RowShareLock);
    if (walk.table != nullptr && walk.table->rd_rel->relkind != RELKIND_RELATION)
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is not a table that has rows of its own",
                               RelationGetRelationName(walk.table))));
    return walk.table != nullptr;
}

// Looks with the rights that code of the table and code of its capture may both use. The captured
// table and this part of it may have different owners.
static OwnersRights look_for_capture(Walk& walk) {
    walk.capture = find_capture(walk.table);
    if (walk.capture == nullptr)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("table \"%s\" is not captured", RelationGetRelationName(walk.table)),
                        errhint("Call outbox.capture() for the table first.")));
    check_owners(*walk.capture, walk.table);
    return OwnersRights(role_of_code(*walk.capture));
}

static void begin_rows(Walk& walk, int rows_at_once) {
    walk.found = table_slot_create(walk.table, nullptr);
    walk.locked = table_slot_create(walk.table, nullptr);
    walk.writer = open_log_for_many(rows_at_once);
}

static void end_rows(Walk& walk) {
    close_log(walk.writer);
    ExecDropSingleTupleTableSlot(walk.found);
    ExecDropSingleTupleTableSlot(walk.locked);
    index_endscan(walk.scan);
    close_key(walk.key);
    relation_close(walk.table, NoLock);  // the lock is held until the transaction ends
}

// Result of locking a row; `gone` if the row was deleted.
enum class Locked { yes, gone, not_now };

static Locked lock_row(Walk& walk, LockWaitPolicy policy, uint8 flags) {
    ItemPointerData place = walk.found->tts_tid;
    TM_FailureData failure;
    const TM_Result result =
        table_tuple_lock(walk.table, &place, GetActiveSnapshot(), walk.locked,
                         GetCurrentCommandId(false), LockTupleShare, policy, flags, &failure);
    switch (result) {
        case TM_Ok:
            return Locked::yes;
        case TM_Deleted:
            return Locked::gone;
        case TM_Updated:  // committed just now; only a newer snapshot shows the new version
        case TM_WouldBlock:
            return Locked::not_now;
        default:
            elog(ERROR, "could not lock a row of table \"%s\": %d",
                 RelationGetRelationName(walk.table), static_cast<int>(result));
            pg_unreachable();
    }
}

// Result of one batch: columns of outbox_internal.write_snapshots().
enum BatchColumn { BatchColumnsOfKey, BatchRows, BatchLastKey, BatchLocked, BatchColumns };

struct SnapshotBatch {
    int rows;
    Datum last_key;  // 0 if there were no rows
    ArrayBuildState* locked;
};

static SnapshotBatch write_batch(Walk& walk, int limit) {
    SnapshotBatch batch{};
    while (batch.rows < limit && index_getnext_slot(walk.scan, ForwardScanDirection, walk.found)) {
        batch.rows++;
        const Locked locked = lock_row(walk, LockWaitSkip, 0);
        if (locked == Locked::yes)
            write_locked_row(walk);
        else if (locked == Locked::not_now)
            batch.locked = accumArrayResult(batch.locked,
                                            CStringGetTextDatum(text_of_key(walk.key, walk.found)),
                                            false, TEXTOID, CurrentMemoryContext);
        if (batch.rows == limit)
            batch.last_key = key_of_row(walk.key, walk.found);
    }
    return batch;
}

static Datum batch_result(FunctionCallInfo fcinfo, const SnapshotBatch& batch, Datum columns) {
    TupleDesc descriptor;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "outbox_internal.write_snapshots() must return a row");
    Datum values[BatchColumns] = {};
    bool nulls[BatchColumns] = {};
    values[BatchColumnsOfKey] = columns;
    values[BatchRows] = Int32GetDatum(batch.rows);
    values[BatchLastKey] = batch.last_key;
    nulls[BatchLastKey] = batch.last_key == Datum{0};
    values[BatchLocked] = batch.locked != nullptr
                              ? makeArrayResult(batch.locked, CurrentMemoryContext)
                              : PointerGetDatum(construct_empty_array(TEXTOID));
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(descriptor), values, nulls));
}

static ArrayType* array_argument(FunctionCallInfo fcinfo, int number) {
    return PG_ARGISNULL(number) ? nullptr : PG_GETARG_ARRAYTYPE_P(number);
}

static void require(FunctionCallInfo fcinfo, std::initializer_list<int> arguments) {
    for (const int number : arguments)
        if (PG_ARGISNULL(number))
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("argument %d must not be null", number + 1)));
}

}  // namespace outbox

// (part regclass, columns name[], after text[], "limit" integer, only_to integer); NULL if the
// table is gone.
OUTBOX_FUNCTION(outbox_write_snapshots) {
    using namespace outbox;
    require(fcinfo, {0, 3});
    Walk walk{};
    walk.only_to = PG_ARGISNULL(4) ? 0 : PG_GETARG_INT32(4);
    if (!open_table(walk, PG_GETARG_OID(0)))
        PG_RETURN_NULL();
    const OwnersRights rights = look_for_capture(walk);
    walk.key = open_key(walk.table, array_argument(fcinfo, 1));
    walk.scan = begin_walk(walk.table, walk.key, GetActiveSnapshot(), array_argument(fcinfo, 2));
    begin_rows(walk, rows_at_once);
    const SnapshotBatch batch = write_batch(walk, PG_GETARG_INT32(3));
    const Datum columns = key_columns(walk.key, walk.table);
    end_rows(walk);
    rights.give_back();
    return batch_result(fcinfo, batch, columns);
}

// (part regclass, columns name[], key text[], only_to integer)
OUTBOX_FUNCTION(outbox_write_snapshot) {
    using namespace outbox;
    require(fcinfo, {0, 1, 2});
    Walk walk{};
    walk.only_to = PG_ARGISNULL(3) ? 0 : PG_GETARG_INT32(3);
    if (!open_table(walk, PG_GETARG_OID(0)))
        PG_RETURN_VOID();
    const OwnersRights rights = look_for_capture(walk);
    walk.key = open_key(walk.table, PG_GETARG_ARRAYTYPE_P(1));
    walk.scan = begin_look_up(walk.table, walk.key, GetActiveSnapshot(), PG_GETARG_ARRAYTYPE_P(2));
    begin_rows(walk, 1);
    if (index_getnext_slot(walk.scan, ForwardScanDirection, walk.found)) {
        const Locked locked = lock_row(walk, LockWaitBlock, TUPLE_LOCK_FLAG_FIND_LAST_VERSION);
        if (locked == Locked::not_now)  // no later batch would come back to this row
            ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
                            errmsg("a row of table \"%s\" cannot be locked now",
                                   RelationGetRelationName(walk.table))));
        if (locked == Locked::yes)
            write_locked_row(walk);
    }
    end_rows(walk);
    rights.give_back();
    PG_RETURN_VOID();
}

// (part regclass)
OUTBOX_FUNCTION(outbox_check_can_backfill) {
    using namespace outbox;
    Walk walk{};
    if (open_table(walk, PG_GETARG_OID(0))) {
        check_not_of_citus(PG_GETARG_OID(0));
        const OwnersRights rights = look_for_capture(walk);
        walk.key = open_key(walk.table, nullptr);
        close_key(walk.key);
        rights.give_back();
        relation_close(walk.table, NoLock);
    }
    PG_RETURN_VOID();
}

// (part regclass)
OUTBOX_FUNCTION(outbox_estimate_rows) {
    using namespace outbox;
    Relation table = try_relation_open(PG_GETARG_OID(0), AccessShareLock);
    double rows = 0;
    if (table != nullptr && table->rd_rel->relkind == RELKIND_RELATION) {
        BlockNumber pages;
        double all_visible;
        estimate_rel_size(table, nullptr, &pages, &rows, &all_visible);
    }
    if (table != nullptr)
        relation_close(table, AccessShareLock);
    PG_RETURN_INT64(static_cast<int64>(rint(rows)));
}

OUTBOX_FUNCTION(outbox_wake_for_backfill) {
    outbox::wake_at_commit(outbox::WakeKeeper);
    PG_RETURN_VOID();
}
