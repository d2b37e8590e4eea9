#include "extension/log/log_writer.hpp"

#include "extension/base/shared_state.hpp"
#include "extension/base/table_form.hpp"
#include "extension/base/wake_outside.hpp"
#include "extension/base/wakeup.hpp"

namespace outbox {

void check_may_enqueue() {
    if (IsBinaryUpgrade)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("cannot enqueue events while pg_upgrade is running")));
    if (RecoveryInProgress())
        ereport(ERROR,
                (errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
                 errmsg("cannot enqueue events on a standby"),
                 errhint("Enqueue on the primary, in the transaction that changes the data.")));
    PreventCommandIfReadOnly("outbox.enqueue()");
    if (IsInParallelMode())
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_TRANSACTION_STATE),
                 errmsg("cannot enqueue events during a parallel operation"),
                 errhint("Declare the function that calls outbox.enqueue() as PARALLEL UNSAFE.")));
    log_relations();  // checks the form of the log before anything relies on it

    static bool warned = false;
    if (shared == nullptr && !warned) {
        warned = true;
        ereport(WARNING,
                (errmsg("events are kept, but nothing delivers them: pg_outbox is not preloaded"),
                 errhint("Add pg_outbox to shared_preload_libraries and restart the server.")));
    }
}

// Setting up an executor costs as much as the insert itself. The index that each segment comes with
// does not need one.
static void open_indexes(LogWriter& writer) {
    List* indexes = RelationGetIndexList(writer.segment);
    if (list_length(indexes) == 1) {
        writer.index = index_open(linitial_oid(indexes), RowExclusiveLock);
        if (is_order_index(writer.index)) {
            writer.index_info = BuildIndexInfo(writer.index);
            return;
        }
        index_close(writer.index, NoLock);
        writer.index = nullptr;
    }
    writer.executor = CreateExecutorState();
    writer.target = makeNode(ResultRelInfo);
    InitResultRelInfo(writer.target, writer.segment, 0, nullptr, 0);
    ExecOpenIndices(writer.target, false);
}

static void insert_into_indexes(LogWriter& writer, TupleTableSlot* row) {
    if (writer.index == nullptr) {
        compat::insert_index_entries(writer.target, row, writer.executor);
        return;
    }
    slot_getsomeattrs(row, LogXid + 1);
    Datum values[] = {row->tts_values[LogXid], row->tts_values[LogPosition]};
    bool nulls[] = {false, false};
    index_insert(writer.index, values, nulls, &row->tts_tid, writer.segment, UNIQUE_CHECK_NO, false,
                 writer.index_info);
}

LogWriter open_log(int rows_at_once) {
    LogWriter writer{};
    // The xid must be taken before any position: readers rely on that (see log_reader.hpp).
    writer.xid = GetTopFullTransactionId();
    writer.command = GetCurrentCommandId(true);
    const LogRelations& log = log_relations();
    const int number = log.current;
    writer.segment = open_own_table(log.segments[number], RowExclusiveLock);
    check_segment(number, writer.segment);
    open_indexes(writer);
    writer.capacity = rows_at_once;
    writer.slots = static_cast<TupleTableSlot**>(palloc0(sizeof(TupleTableSlot*) * rows_at_once));
    writer.memory = CurrentMemoryContext;
    if (rows_at_once > 1)
        writer.memory =
            AllocSetContextCreate(CurrentMemoryContext, "outbox rows", ALLOCSET_DEFAULT_SIZES);
    return writer;
}

LogWriter open_log_for_many(int rows_at_once) {
    LogWriter writer = open_log(rows_at_once);
    if (rows_at_once > 1)
        writer.bulk = GetBulkInsertState();
    return writer;
}

bool is_current(const LogWriter& writer) {
    const LogRelations& log = log_relations();
    return RelationGetRelid(writer.segment) == log.segments[log.current];
}

TupleTableSlot* next_row(LogWriter& writer) {
    TupleTableSlot*& slot = writer.slots[writer.filled];
    if (slot == nullptr) {
        MemoryContext outer = MemoryContextSwitchTo(GetMemoryChunkContext(writer.slots));
        slot = MakeSingleTupleTableSlot(RelationGetDescr(writer.segment), &TTSOpsHeapTuple);
        for (int i = LogColumns; i < slot->tts_tupleDescriptor->natts; i++)
            slot->tts_isnull[i] = true;  // a dropped column
        MemoryContextSwitchTo(outer);
    }
    return ExecClearTuple(slot);
}

static void insert_rows(LogWriter& writer) {
    if (writer.filled == 1)
        table_tuple_insert(writer.segment, writer.slots[0], writer.command, 0, writer.bulk);
    else if (writer.filled > 1)
        table_multi_insert(writer.segment, writer.slots, writer.filled, writer.command, 0,
                           writer.bulk);
    for (int i = 0; i < writer.filled; i++)
        insert_into_indexes(writer, writer.slots[i]);
}

void write_rows(LogWriter& writer) {
    MemoryContext outer = MemoryContextSwitchTo(writer.memory);
    writer.is_writing = true;
    insert_rows(writer);
    writer.is_writing = false;
    MemoryContextSwitchTo(outer);
    writer.filled = 0;
    writer.size = 0;
    if (writer.capacity > 1)
        MemoryContextReset(writer.memory);
}

// More would not be faster.
static constexpr size_t max_bytes = 256 * 1024;

bool write_row(LogWriter& writer) {
    TupleTableSlot* row = writer.slots[writer.filled];
    row->tts_values[LogXid] = UInt64GetDatum(U64FromFullTransactionId(writer.xid));
    writer.position = nextval_internal(log_relations().positions, false);
    row->tts_values[LogPosition] = Int64GetDatum(writer.position);
    if (writer.position_is_version && row->tts_isnull[LogVersion]) {
        row->tts_values[LogVersion] = row->tts_values[LogPosition];
        row->tts_isnull[LogVersion] = false;
    }
    ExecStoreVirtualTuple(row);
    // The form in which it is inserted, made once.
    writer.size += ExecFetchSlotHeapTuple(row, true, nullptr)->t_len;
    if (++writer.filled < writer.capacity && writer.size < max_bytes)
        return false;
    write_rows(writer);
    CHECK_FOR_INTERRUPTS();
    return true;
}

void close_log(LogWriter& writer) {
    write_rows(writer);
    if (writer.bulk != nullptr) {
        FreeBulkInsertState(writer.bulk);
        table_finish_bulk_insert(writer.segment, 0);
    }
    if (writer.capacity > 1)
        MemoryContextDelete(writer.memory);
    for (int i = 0; i < writer.capacity && writer.slots[i] != nullptr; i++)
        ExecDropSingleTupleTableSlot(writer.slots[i]);
    if (writer.index != nullptr) {
        index_close(writer.index, NoLock);  // the lock is held until the transaction ends
    } else {
        ExecCloseIndices(writer.target);
        FreeExecutorState(writer.executor);
    }
    table_close(writer.segment, NoLock);
    wake_at_commit(WakeRelays);
    wake_outside_at_commit();
}

}  // namespace outbox
