// outbox.workers(): state and counters of the workers of the current database, for the views.
#include "extension/base/crashes.hpp"
#include "extension/base/pg.hpp"
#include "extension/base/shared_state.hpp"
#include "extension/base/wakeup.hpp"

namespace outbox {

// Rows are filled in by column number, so the function must have been declared with as many
// columns.
static ReturnSetInfo* begin_rows(FunctionCallInfo fcinfo, int columns) {
    InitMaterializedSRF(fcinfo, 0);
    auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    if (result->setDesc->natts != columns)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("version of extension \"pg_outbox\" does not match its library"),
                        errhint("Run ALTER EXTENSION pg_outbox UPDATE.")));
    return result;
}

// Copied under the lock, because code that may raise errors must not run while it is held.
struct WorkerRow {
    WorkerKind kind;
    Oid object;
    NameData name;
    pid_t pid;
    WorkerState state;
    TimestampTz state_since;
    TimestampTz last_error_at;
    char last_error[sizeof WorkerSlot::last_error];
    uint64 delivered, bytes, failures, unsettled, held_keys, read_to;
    uint64 throttled, suspects, lanes_down;
    double request_limit;
    int64 settled_position;
    int64 oldest, failing_since, next_attempt;  // Unix micros; 0 if none
    int64 p50, p99;                             // microseconds; -1 if unknown
    LatencyBuckets::Figures latencies;
    int64 round_trip_p50, round_trip_p99, client_queue, connects, disconnects;  // -1 if unknown
};

static const char* kind_name(WorkerKind kind) {
    switch (kind) {
        case WorkerKind::keeper:
            return "keeper";
        case WorkerKind::relay:
            return "relay";
        case WorkerKind::processor:
            return "processor";
        case WorkerKind::backfill:
            return "backfill";
        case WorkerKind::none:
            break;
    }
    return "none";
}

static void copy_row(WorkerRow& row, const WorkerSlot& slot) {
    row.kind = slot.kind;
    row.object = slot.object;
    row.name = slot.name;
    row.pid = slot.pid;
    row.state = slot.state;
    row.state_since = slot.state_since;
    row.last_error_at = slot.last_error_at;
    memcpy(row.last_error, slot.last_error, sizeof row.last_error);
    row.delivered = slot.stats.all_delivered();
    row.bytes = slot.stats.bytes;
    row.failures = slot.stats.all_failures();
    row.unsettled = slot.unsettled;
    row.held_keys = slot.held_keys;
    row.throttled = slot.stats.throttled_answers;
    row.suspects = slot.suspects;
    row.lanes_down = slot.lanes_down;
    row.request_limit = slot.request_limit;
    row.round_trip_p50 = slot.round_trip_p50;
    row.round_trip_p99 = slot.round_trip_p99;
    row.client_queue = slot.client_queue;
    row.connects = slot.connects;
    row.disconnects = slot.disconnects;
    row.read_to = slot.read_to;
    row.settled_position = slot.settled_position;
    row.oldest = slot.oldest;
    row.failing_since = slot.failing_since;
    row.next_attempt = slot.next_attempt;
    row.p50 = slot.stats.latency.percentile(0.50).value_or(-1);
    row.p99 = slot.stats.latency.percentile(0.99).value_or(-1);
    row.latencies = slot.stats.latencies.figures();
}

static Datum interval_from_micros(int64 micros) {
    auto* interval = static_cast<Interval*>(palloc0(sizeof(Interval)));
    interval->time = micros;
    return IntervalPGetDatum(interval);
}

Datum array_of(const LatencyBuckets::Figures& latencies) {
    Datum counts[LatencyBuckets::count];
    for (std::size_t i = 0; i < LatencyBuckets::count; i++)
        counts[i] = Int64GetDatum(static_cast<int64>(latencies.up_to[i]));
    return PointerGetDatum(construct_array(counts, LatencyBuckets::count, INT8OID, sizeof(int64),
                                           FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

// Columns of outbox.workers(), in the order of sql/pg_outbox/native/workers.sql.
enum WorkerColumn {
    Kind,
    Object,
    Name,
    Pid,
    State,
    StateSince,
    Delivered,
    Bytes,
    Failures,
    Unsettled,
    HeldKeys,
    ReadTo,
    Oldest,
    Position,
    P50,
    P99,
    LastError,
    LastErrorAt,
    Throttled,
    RequestLimit,
    Suspects,
    LanesDown,
    RoundTripP50,
    RoundTripP99,
    ClientQueue,
    Connects,
    Disconnects,
    FailingSince,
    NextAttemptAt,
    LatencyBucketsUpTo,
    LatencySum,
    Columns
};

static void put_row(ReturnSetInfo* result, const WorkerRow& row) {
    Datum values[Columns] = {};
    bool nulls[Columns] = {};
    values[Kind] = CStringGetTextDatum(kind_name(row.kind));
    values[Object] = ObjectIdGetDatum(row.object);
    values[Name] = NameGetDatum(&row.name);
    values[Pid] = Int32GetDatum(row.pid);
    values[State] = CStringGetTextDatum(worker_state_name(row.state));
    values[StateSince] = TimestampTzGetDatum(row.state_since);
    values[Delivered] = Int64GetDatum(static_cast<int64>(row.delivered));
    values[Bytes] = Int64GetDatum(static_cast<int64>(row.bytes));
    values[Failures] = Int64GetDatum(static_cast<int64>(row.failures));
    values[Unsettled] = Int64GetDatum(static_cast<int64>(row.unsettled));
    values[HeldKeys] = Int64GetDatum(static_cast<int64>(row.held_keys));
    values[ReadTo] = UInt64GetDatum(row.read_to);
    nulls[ReadTo] = row.read_to == 0;
    values[Oldest] = TimestampTzGetDatum(row.oldest - epoch_difference);
    nulls[Oldest] = row.oldest == 0;
    values[Position] = Int64GetDatum(row.settled_position);
    values[P50] = interval_from_micros(row.p50);
    nulls[P50] = row.p50 < 0;
    values[P99] = interval_from_micros(row.p99);
    nulls[P99] = row.p99 < 0;
    values[LastError] = CStringGetTextDatum(row.last_error);
    nulls[LastError] = nulls[LastErrorAt] = row.last_error_at == 0;
    values[LastErrorAt] = TimestampTzGetDatum(row.last_error_at);
    values[Throttled] = Int64GetDatum(static_cast<int64>(row.throttled));
    values[RequestLimit] = Float8GetDatum(row.request_limit);
    nulls[RequestLimit] = row.request_limit == 0;
    values[Suspects] = Int64GetDatum(static_cast<int64>(row.suspects));
    values[LanesDown] = Int64GetDatum(static_cast<int64>(row.lanes_down));
    values[RoundTripP50] = interval_from_micros(row.round_trip_p50);
    nulls[RoundTripP50] = row.round_trip_p50 < 0;
    values[RoundTripP99] = interval_from_micros(row.round_trip_p99);
    nulls[RoundTripP99] = row.round_trip_p99 < 0;
    values[ClientQueue] = Int64GetDatum(row.client_queue);
    values[Connects] = Int64GetDatum(row.connects);
    values[Disconnects] = Int64GetDatum(row.disconnects);
    nulls[ClientQueue] = nulls[Connects] = nulls[Disconnects] = row.client_queue < 0;
    values[FailingSince] = TimestampTzGetDatum(row.failing_since - epoch_difference);
    nulls[FailingSince] = row.failing_since == 0;
    values[NextAttemptAt] = TimestampTzGetDatum(row.next_attempt - epoch_difference);
    nulls[NextAttemptAt] = row.next_attempt == 0;
    values[LatencyBucketsUpTo] = array_of(row.latencies);
    values[LatencySum] = Float8GetDatum(static_cast<double>(row.latencies.sum) / USECS_PER_SEC);
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_workers) {
    using namespace outbox;
    ReturnSetInfo* result = begin_rows(fcinfo, Columns);
    if (shared == nullptr)  // there are no workers if not preloaded
        return Datum{0};

    auto* row = static_cast<WorkerRow*>(palloc(sizeof(WorkerRow)));
    for (int i = 0; i < shared->slots_used; i++) {
        LWLockAcquire(shared->lock, LW_SHARED);
        const WorkerSlot& slot = shared->slots[i];
        const bool ours = slot.attached && slot.database == MyDatabaseId;
        if (ours)
            copy_row(*row, slot);
        LWLockRelease(shared->lock);
        if (ours)
            put_row(result, *row);
    }
    return Datum{0};
}

// ---------------------------------------------------------------------------------------------
// outbox.absent_workers()
// ---------------------------------------------------------------------------------------------

namespace outbox {

// Columns, in the order of sql/pg_outbox/native/workers.sql.
enum AbsentColumn {
    AbsentKind,
    AbsentObject,
    AbsentName,
    AbsentAccount,
    AbsentState,
    AbsentWaitsFor,
    AbsentCrashes,
    AbsentDeaths,
    AbsentSince,
    AbsentNextTry,
    AbsentColumns
};

static const char* waits_for(Refusal refusal) {
    switch (refusal) {
        case Refusal::no_slot:
            return "outbox.max_workers";
        case Refusal::no_process:
            return "max_worker_processes";
        case Refusal::role_has_most:
            return "outbox.max_workers_per_role";
        case Refusal::database_has_most:
            return "outbox.max_workers_per_database";
        case Refusal::none:
        case Refusal::database_is_held:
            break;
    }
    return nullptr;
}

// `crashes` is 0 if the worker is absent for another reason.
static void put_absent(ReturnSetInfo* result, const AbsentWorker& worker, int crashes) {
    const char* setting = waits_for(worker.refusal);
    const char* state = crashes > 0 ? "held back" : setting != nullptr ? "waiting" : "failing";
    Datum values[AbsentColumns] = {};
    bool nulls[AbsentColumns] = {};
    NameData name = worker.name;
    values[AbsentKind] = CStringGetTextDatum(kind_name(worker.identity.kind));
    values[AbsentObject] = ObjectIdGetDatum(worker.identity.object);
    values[AbsentName] = NameGetDatum(&name);
    values[AbsentAccount] = ObjectIdGetDatum(worker.account);
    nulls[AbsentAccount] = !OidIsValid(worker.account);
    values[AbsentState] = CStringGetTextDatum(state);
    values[AbsentWaitsFor] = CStringGetTextDatum(setting != nullptr ? setting : "");
    nulls[AbsentWaitsFor] = setting == nullptr;
    values[AbsentCrashes] = Int32GetDatum(crashes);
    values[AbsentDeaths] = Int32GetDatum(worker.deaths);
    values[AbsentSince] = TimestampTzGetDatum(worker.since);
    values[AbsentNextTry] = TimestampTzGetDatum(worker.next_try);
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static void put_held_back(ReturnSetInfo* result) {
    for (int i = 0; i < max_crash_notes; i++) {
        const CrashNote& note = crash_notes()[i];
        const TimestampTz until = note.count > 0 ? held_back_until(note) : 0;
        if (until == 0 || note.identity.database != MyDatabaseId)
            continue;
        AbsentWorker worker = {};
        worker.identity = note.identity;
        worker.name = note.name;
        worker.since = note.at;
        worker.next_try = until;
        if (note.identity.kind == WorkerKind::none) {  // this holds the keeper back
            worker.identity.kind = WorkerKind::keeper;
            namestrcpy(&worker.name, get_database_name(MyDatabaseId));
        }
        put_absent(result, worker, note.count);
    }
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_absent_workers) {
    using namespace outbox;
    ReturnSetInfo* result = begin_rows(fcinfo, AbsentColumns);
    if (shared == nullptr)
        return Datum{0};

    put_held_back(result);
    for (const AbsentWorker& entry : shared->absent) {
        LWLockAcquire(shared->lock, LW_SHARED);
        const AbsentWorker worker = entry;
        LWLockRelease(shared->lock);
        const CrashNote* why = nullptr;
        if (worker.identity.kind != WorkerKind::none && worker.identity.database == MyDatabaseId &&
            held_back_until(worker.identity, &why) == 0)
            put_absent(result, worker, 0);
    }
    return Datum{0};
}

// outbox_internal.workers_needed(relays oid[]); null if the library is not preloaded.
OUTBOX_FUNCTION(outbox_workers_needed) {
    using namespace outbox;
    if (shared == nullptr)
        PG_RETURN_NULL();
    const ArrayType* relays = PG_GETARG_ARRAYTYPE_P(0);
    const int count = ARR_HASNULL(relays) ? 0 : ArrayGetNItems(ARR_NDIM(relays), ARR_DIMS(relays));
    PG_RETURN_INT32(workers_needed(reinterpret_cast<const Oid*>(ARR_DATA_PTR(relays)), count));
}

// Makes operators' decisions take effect at the end of their transaction.
OUTBOX_FUNCTION(outbox_wake_relays) {
    outbox::wake_at_commit(outbox::WakeKeeper);
    PG_RETURN_VOID();
}
