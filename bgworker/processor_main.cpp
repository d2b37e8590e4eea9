// The processor runs the handlers of one consumer, written in SQL, as the role that subscribed
// them.
//
// Functions of pg_inbox do all of its work (sql/pg_inbox/process.sql), and other clients may call
// them too. This file has only the loop: look for the next messages, process each in a transaction
// of its own, sleep until a commit wakes it or a failed message is due again.
//
// It connects as the role of the consumer, so handlers have only the rights of that role. An error
// in the functions themselves ends the process; the keeper starts another.
#include <algorithm>

#include "bgworker/base/query_result.hpp"
#include "bgworker/base/worker.hpp"
#include "core/backoff.hpp"
#include "extension/base/crashes.hpp"
#include "extension/base/hooks.hpp"
#include "extension/base/settings.hpp"

namespace outbox {

static constexpr int messages_at_once = 500;
static constexpr Micros save_interval = seconds(1);
static constexpr Micros prune_interval = seconds(600);

struct Message {
    int64 seq;
    TimestampTz occurred_at;
    TimestampTz received_at;
};

// Memory of the process for the messages of one look.
static Message messages[messages_at_once];
static int message_count = 0;
// The subscriptions that may run, as of the same look; a text[].
static Datum confirmed = 0;

// Times from receipt to processing. The other figures are in shared memory.
static LatencyHistogram waits;

static SPIPlanPtr plan_of(const char* statement, std::initializer_list<Oid> types) {
    SPIPlanPtr plan =
        SPI_prepare(statement, static_cast<int>(types.size()), const_cast<Oid*>(types.begin()));
    if (plan == nullptr || SPI_keepplan(plan) != 0)
        elog(ERROR, "could not prepare \"%s\"", statement);
    return plan;
}

// The owner of the functions may have replaced them, so the types of their results are checked.
static void check_result(std::initializer_list<Oid> types) {
    const TupleDesc row = SPI_tuptable->tupdesc;
    bool fits = row->natts == static_cast<int>(types.size());
    int column = 0;
    for (const Oid type : types)
        fits = fits && SPI_gettypeid(row, ++column) == type;
    if (!fits)
        ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
                        errmsg("a function of pg_inbox does not return what it should")));
}

static void execute(SPIPlanPtr plan, Datum* values, const char* nulls,
                    std::initializer_list<Oid> types, long max_rows) {
    const int code = SPI_execute_plan(plan, values, nulls, false, max_rows);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not process messages: %s", SPI_result_code_string(code));
    check_result(types);
}

static void execute_for_row(SPIPlanPtr plan, Datum* values, const char* nulls, Oid type) {
    execute(plan, values, nulls, {type}, 1);
    if (SPI_processed != 1)
        ereport(ERROR, (errcode(ERRCODE_CARDINALITY_VIOLATION),
                        errmsg("a function of pg_inbox does not return what it should")));
}

static Datum consumer() {
    return Int32GetDatum(static_cast<int32>(shared->slots[my_slot].object));
}

// Returns false if there are no subscriptions, or some are not confirmed, so that none may run.
static bool look_for_subscriptions() {
    static SPIPlanPtr plan = nullptr;
    if (plan == nullptr)
        plan = plan_of("SELECT inbox_internal.confirmed_subscriptions($1)", {INT4OID});
    Datum values[] = {consumer()};
    execute_for_row(plan, values, nullptr, TEXTARRAYOID);
    bool is_null;
    const Datum result = result_value(0, 1, &is_null);
    if (confirmed != 0)
        pfree(DatumGetPointer(confirmed));
    confirmed = 0;
    if (is_null)
        return false;
    MemoryContext before = MemoryContextSwitchTo(TopMemoryContext);
    confirmed = PointerGetDatum(DatumGetArrayTypePCopy(result));
    MemoryContextSwitchTo(before);
    return true;
}

static void look_for_messages() {
    static SPIPlanPtr plan = nullptr;
    if (!begin_sql_work("looking for messages", "pg_inbox"))
        proc_exit(0);
    if (plan == nullptr)
        plan = plan_of(
            "SELECT seq, occurred_at, received_at FROM inbox_internal.next_messages($1, $2)",
            {INT4OID, INT4OID});
    Datum values[] = {consumer(), Int32GetDatum(messages_at_once)};
    execute(plan, values, nullptr, {INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID}, messages_at_once);
    message_count = static_cast<int>(Min(SPI_processed, uint64{messages_at_once}));
    for (int i = 0; i < message_count; i++) {
        bool is_null;
        messages[i] = {DatumGetInt64(result_value(i, 1, &is_null)),
                       DatumGetTimestampTz(result_value(i, 2, &is_null)),
                       DatumGetTimestampTz(result_value(i, 3, &is_null))};
    }
    // Read after the messages, so that a message does not miss a subscription that existed before
    // it.
    if (message_count > 0 && !look_for_subscriptions())
        message_count = 0;
    end_sql_work();
}

// Removes what the handlers of a message have left in the session, as DISCARD ALL does, so that the
// next message meets none of it. Statements that inbox.apply() has prepared stay, unless a handler
// has prepared some, too. What a library or a procedural language remembers stays as well.
static void forget_handlers() {
    begin_work("forgetting what handlers have left");
    PortalHashTableDeleteAll();
    // The reset looks the role up, which may have been dropped. Only superusers can have changed it.
    if (GetSessionUserId() != GetAuthenticatedUserId())
        SetPGVariable("session_authorization", NIL, false);
    SetConfigOption("role", "none", PGC_USERSET, PGC_S_SESSION);
    ResetAllOptions();
    if (take_prepared_by_others())
        DropAllPreparedStatements();
    LockReleaseAll(USER_LOCKMETHOD, true);
    ResetTempTableNamespace();
    ResetSequenceCaches();
    end_work();
}

// Times may be any timestamp, infinity included.
static Micros time_between(TimestampTz from, TimestampTz to) {
    int64 difference;
    return pg_sub_s64_overflow(to, from, &difference) ? 0 : difference;
}

// Counts a failed attempt of a message that ended the processor, or the server with it.
static void count_end(int64 message, const CrashNote* crash) {
    if (!begin_sql_work("counting a message that ended the processor", "pg_inbox"))
        proc_exit(0);
    Datum values[] = {consumer(), Int64GetDatum(message),
                      TimestampTzGetDatum(crash != nullptr ? crash->at : 0)};
    const char nulls[] = {' ', ' ', crash != nullptr ? ' ' : 'n'};
    SPIPlanPtr plan =
        plan_of("SELECT inbox_internal.record_end($1, $2, $3)", {INT4OID, INT8OID, TIMESTAMPTZOID});
    execute_for_row(plan, values, nulls, VOIDOID);
    // The message may bring the server down again at once, and a count that is lost never grows.
    ForceSyncCommit();
    end_sql_work();
}

// No way in which a handler ends its process may keep its message from becoming a dead letter.
static void count_ends() {
    WorkerSlot& slot = shared->slots[my_slot];
    if (slot.unfinished != 0)
        count_end(slot.unfinished, nullptr);
    slot.unfinished = 0;
    const CrashNote* crash = crashes_of({slot.kind, slot.database, slot.object, slot.role});
    if (crash != nullptr && crash->at_work != 0)
        count_end(crash->at_work, crash);
}

static void process(const Message& message) {
    static SPIPlanPtr plan = nullptr;
    if (!begin_sql_work("processing a message", "pg_inbox"))
        proc_exit(0);
    shared->slots[my_slot].at_work = message.seq;
    if (plan == nullptr)
        plan =
            plan_of("SELECT inbox_internal.process($1, $2, $3)", {INT4OID, INT8OID, TEXTARRAYOID});
    Datum values[] = {consumer(), Int64GetDatum(message.seq), confirmed};
    execute_for_row(plan, values, nullptr, BOOLOID);
    bool held;
    const bool done = DatumGetBool(result_value(0, 1, &held));
    end_sql_work();
    shared->slots[my_slot].at_work = 0;
    forget_handlers();

    DeliveryStats& stats = shared->slots[my_slot].stats;
    if (done) {
        const TimestampTz processed_at = GetCurrentTimestamp();
        const Micros now = steady_now();
        stats.settled(time_between(message.occurred_at, processed_at), 0, now);
        waits.add(time_between(message.received_at, processed_at), now);
    } else if (!held) {
        stats.failed();
    }
}

// Returns the milliseconds until a failed message is due; -1 if there is none.
static long until_next_attempt() {
    static SPIPlanPtr plan = nullptr;
    if (!begin_sql_work("looking for messages", "pg_inbox"))
        proc_exit(0);
    if (plan == nullptr)
        plan = plan_of("SELECT inbox_internal.next_attempt($1)", {INT4OID});
    Datum values[] = {consumer()};
    execute_for_row(plan, values, nullptr, TIMESTAMPTZOID);
    bool is_null;
    const TimestampTz due = DatumGetTimestampTz(result_value(0, 1, &is_null));
    const long left =
        is_null ? -1 : Max(1, TimestampDifferenceMilliseconds(GetCurrentTimestamp(), due));
    end_sql_work();
    return left;
}

static Datum interval_of(std::optional<Micros> micros, char* null) {
    auto* interval = static_cast<Interval*>(palloc0(sizeof(Interval)));
    interval->time = micros.value_or(0);
    *null = micros ? ' ' : 'n';
    return IntervalPGetDatum(interval);
}

// Adds what was counted since the last call to inbox.progress, which other sessions read.
static void save_progress(bool at_once) {
    static SPIPlanPtr plan = nullptr;
    static uint64 saved_done = 0, saved_failed = 0;
    static LatencyBuckets::Figures saved_latencies;
    static Micros saved_at = 0;
    const DeliveryStats& stats = shared->slots[my_slot].stats;
    const uint64 done = stats.delivered, failed = stats.failures;
    const LatencyBuckets::Figures latencies = stats.latencies.figures();
    const Micros now = steady_now();
    if ((done == saved_done && failed == saved_failed) ||
        (!at_once && now - saved_at < save_interval))
        return;

    if (!begin_sql_work("saving progress", "pg_inbox"))
        proc_exit(0);
    if (plan == nullptr)
        plan = plan_of("SELECT inbox_internal.save_progress($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                       {INT4OID, INT8OID, INT8OID, INTERVALOID, INTERVALOID, INTERVALOID,
                        INTERVALOID, INT8ARRAYOID, FLOAT8OID});
    const LatencyBuckets::Figures more = latencies.since(saved_latencies);
    char nulls[] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
    Datum values[] = {consumer(),
                      Int64GetDatum(static_cast<int64>(done - saved_done)),
                      Int64GetDatum(static_cast<int64>(failed - saved_failed)),
                      interval_of(stats.latency.percentile(0.50), &nulls[3]),
                      interval_of(stats.latency.percentile(0.99), &nulls[4]),
                      interval_of(waits.percentile(0.50), &nulls[5]),
                      interval_of(waits.percentile(0.99), &nulls[6]),
                      array_of(more),
                      Float8GetDatum(static_cast<double>(more.sum) / USECS_PER_SEC)};
    execute_for_row(plan, values, nulls, VOIDOID);
    end_sql_work();
    saved_done = done;
    saved_failed = failed;
    saved_latencies = latencies;
    saved_at = now;
}

// Removes rows older than the deduplication window. Any processor of the database may do it.
static void prune_now_and_then() {
    static SPIPlanPtr plan = nullptr;
    static Micros due = 0;
    if (steady_now() < due)
        return;
    if (!begin_sql_work("pruning the deduplication window", "pg_inbox"))
        proc_exit(0);
    if (plan == nullptr)
        plan = plan_of("SELECT coalesce(bool_or(more), false) FROM inbox.prune()", {});
    execute_for_row(plan, nullptr, nullptr, BOOLOID);
    bool is_null;
    const bool more = DatumGetBool(result_value(0, 1, &is_null));
    end_sql_work();
    if (!more)
        due = steady_now() + prune_interval;
}

static void work() {
    for (int i = 0; i < message_count; i++) {
        handle_signals();
        process(messages[i]);
        save_progress(false);
    }
}

static void process_messages() {
    count_ends();
    Backoff poll(milliseconds(settings::poll_min), milliseconds(settings::poll_max), random_seed());
    while (true) {
        if (handle_signals() || reload_requested())
            poll.set_limits(milliseconds(settings::poll_min), milliseconds(settings::poll_max));
        begin_looking();
        prune_now_and_then();
        look_for_messages();
        if (message_count > 0) {
            set_my_state(WorkerState::delivering);
            work();
            poll.reset();
            continue;
        }
        save_progress(true);
        set_my_state(WorkerState::idle);
        const long due = until_next_attempt();
        if (!work_is_due())
            wait_for_latch(shorter_timeout(due, static_cast<long>(poll.next() / 1000 + 1)),
                           "OutboxProcessorMain");
    }
}

// Returns whether an error is not of the message, but of the role or the server: the disk is full, memory or
// connections are used up, files cannot be read, it is no longer the primary.
static bool is_trouble(int code) {
    return code == ERRCODE_INSUFFICIENT_PRIVILEGE || code == ERRCODE_READ_ONLY_SQL_TRANSACTION ||
           ERRCODE_TO_CATEGORY(code) == ERRCODE_INSUFFICIENT_RESOURCES ||
           ERRCODE_TO_CATEGORY(code) == ERRCODE_SYSTEM_ERROR;
}

// Errors of handlers do not come here. So the consumer was given away or a right was revoked, which
// is not an error. The keeper starts another processor when there is something to process.
[[noreturn]] static void end_without_right() {
    MemoryContextSwitchTo(TopMemoryContext);
    const ErrorData* const error = CopyErrorData();
    FlushErrorState();
    HOLD_INTERRUPTS();
    ereport(LOG,
            (errmsg("the processor ends because its role may no longer process these messages"),
             errdetail_log("%s", error->message)));
    proc_exit(1);
}

}  // namespace outbox

extern "C" PGDLLEXPORT void outbox_processor_main(Datum argument) {
    using namespace outbox;

    become_worker(argument, WakeProcessors);
    // A crash loses the effect of a message together with its record, so it is processed again.
    SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_OVERRIDE);
    PG_TRY();
    { process_messages(); }
    PG_CATCH();
    {
        if (is_trouble(geterrcode()))
            shared->slots[my_slot].at_work = 0;
        if (geterrcode() != ERRCODE_INSUFFICIENT_PRIVILEGE)
            PG_RE_THROW();
        end_without_right();
    }
    PG_END_TRY();
}
