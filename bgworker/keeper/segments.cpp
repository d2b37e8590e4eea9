#include "bgworker/keeper/segments.hpp"

#include "bgworker/base/query_result.hpp"
#include "bgworker/base/worker.hpp"
#include "extension/base/outside_text.hpp"
#include "extension/base/settings.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// Pauses before the next look if no change is known: while relays are busy, which includes those
// that cannot deliver; after another session had a lock; and for receipts and source events.
static constexpr Micros busy_pause = seconds(30);
static constexpr Micros locked_pause = seconds(5);
static constexpr Micros memory_pause = seconds(3'600);

struct Segment {
    Oid table;
    bool current;
    bool empty;
    int64 size;  // with its index and TOAST table
    TimestampTz since;
};

static Segment segments[segment_count];

// Returns when a stored time is `length` ago. read_ring() has made sure that it is not after now, so this is
// never further away than `length`.
static Micros end_of(TimestampTz since, Micros length, Micros now) {
    const Micros age = since <= 0 ? length : Max(0, GetCurrentTimestamp() - since);
    return now + Max(0, length - age);
}

static void execute(const char* statement, int expected) {
    const int code = SPI_execute(statement, false, 0);
    if (code != expected)
        elog(ERROR, "could not tend the segments: %s", SPI_result_code_string(code));
}

// The result of a function.
static bool is_true(const char* function) {
    check_result_row(function, {BOOLOID});
    return DatumGetBool(required_value(function, 0, 1));
}

// Result of one round.
struct Round {
    bool changed = false;  // there may be more to do
    Micros again = never;  // if not changed, when to come back
};

static void come_back_at(Round& round, Micros time) {
    round.again = Min(round.again, time);
}

// ---------------------------------------------------------------------------------------------
// Reading the ring
// ---------------------------------------------------------------------------------------------

static void measure(Segment& segment) {
    segment.size =
        DatumGetInt64(DirectFunctionCall1(pg_total_relation_size, ObjectIdGetDatum(segment.table)));
    Relation table = table_open(segment.table, AccessShareLock);
    segment.empty = RelationGetNumberOfBlocks(table) == 0;
    table_close(table, AccessShareLock);
}

static void read_ring() {
    const LogRelations& log = log_relations();
    execute("SELECT outbox_internal.bound_ring()", SPI_OK_SELECT);
    execute("SELECT number, current, since FROM outbox.ring ORDER BY number", SPI_OK_SELECT);
    check_result("ring", {INT4OID, BOOLOID, TIMESTAMPTZOID});
    if (SPI_processed != segment_count)
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("outbox.ring must have a row for each of %d segments", segment_count)));
    bool is_null;  // null counts as false, or as long ago
    for (int i = 0; i < segment_count; i++) {
        segments[i].table = log.segments[i];
        segments[i].current = DatumGetBool(result_value(i, RingCurrent + 1, &is_null));
        segments[i].since = DatumGetTimestampTz(result_value(i, RingSince + 1, &is_null));
        measure(segments[i]);
    }
}

// Detaches one destination from the log, or moves what others keep in it to outbox.delivery.
// Repeats that only after the effect can be seen, and after the others could save their cursors.
static void detach_last(Round& round, Micros now) {
    static Micros not_before = 0;
    if (now < not_before) {
        come_back_at(round, not_before);
        return;
    }
    not_before = now + Max(seconds(5), 2 * milliseconds(settings::cursor_flush_interval));
    come_back_at(round, not_before);
    execute("SELECT outbox_internal.detach_last()", SPI_OK_SELECT);
    check_result_row("detach_last", {NAMEOID});
    bool is_null;
    const Datum name = result_value(0, 1, &is_null);
    if (!is_null)
        ereport(WARNING,
                (errmsg("destination \"%s\" is detached: the log has outgrown outbox.max_log_size",
                        NameForLog(NameStr(*DatumGetName(name))).text),
                 errdetail("It is paused, and events that it has not settled will be removed."),
                 errhint("outbox.resume() continues with the events still in the log.")));
}

// Logs once when the log outgrows its limit, not on each look.
static void watch_size(Round& round, Micros now) {
    static bool warned = false;
    int64 total = 0;
    for (const Segment& segment : segments)
        total += segment.size;
    const int64 limit = static_cast<int64>(settings::max_log_size) * 1024 * 1024;
    if (limit > 0 && total > limit && !warned)
        ereport(WARNING,
                (errmsg("the log of events has grown to %lld MB",
                        static_cast<long long>(total / (1024 * 1024))),
                 errdetail("The limit of outbox.max_log_size is %d MB.", settings::max_log_size),
                 errhint("The view outbox.segment names the destinations that hold it.")));
    warned = limit > 0 && total > limit;
    if (warned && settings::on_full_log == settings::OnFullLogDetach)
        detach_last(round, now);
}

// ---------------------------------------------------------------------------------------------
// Moving on
// ---------------------------------------------------------------------------------------------

static int current_segment() {
    for (int i = 0; i < segment_count; i++)
        if (segments[i].current)
            return i;
    return 0;
}

// Returns the next empty segment; -1 if none is empty, so that the current one goes on growing.
static int next_segment(int current) {
    for (int i = 1; i < segment_count; i++)
        if (const int next = (current + i) % segment_count; segments[next].empty)
            return next;
    return -1;
}

static void move_on_when_due(Round& round, Micros now) {
    const int current = current_segment();
    const Segment& segment = segments[current];
    if (segment.empty)
        return;
    const Micros old_at = end_of(segment.since, seconds(settings::segment_age), now);
    const bool large = segment.size >= static_cast<int64>(settings::segment_size) * 1024;
    if (!large && now < old_at) {
        come_back_at(round, old_at);
        return;
    }
    const int next = next_segment(current);
    if (next < 0) {
        come_back_at(round, now + busy_pause);
        return;
    }
    execute(psprintf("UPDATE outbox.ring SET current = (number = %d), since = clock_timestamp() "
                     "WHERE number IN (%d, %d)",
                     next, current, next),
            SPI_OK_UPDATE);
    CacheInvalidateRelcacheByRelid(log_relations().ring);  // tells sessions to read the ring again
    round.changed = true;
}

// ---------------------------------------------------------------------------------------------
// Emptying segments
// ---------------------------------------------------------------------------------------------

// Only a scan of the segment shows whether a destination selects an event in it that is not
// settled. If so, the next scan waits for twenty times the duration of this one.
static Micros look_not_before[segment_count];

static bool is_free(int number) {
    const Micros begin = steady_now();
    execute(psprintf("SELECT outbox_internal.segment_is_free(%d)", number), SPI_OK_SELECT);
    const bool free = is_true("segment_is_free");
    const Micros end = steady_now();
    look_not_before[number] = free ? 0 : end + 20 * (end - begin);
    return free;
}

// While a relay reads a window it holds TIDs of the segment, including those of rolled-back rows.
// The caller holds the lock on the segment, so a relay that scanned it has set its bit before.
static bool is_being_read(int number) {
    for (int i = 0; i < shared->slots_used; i++) {
        const WorkerSlot& slot = shared->slots[i];
        if (slot.kind == WorkerKind::relay && slot.database == MyDatabaseId &&
            (slot.reading & 1U << number) != 0)
            return true;
    }
    return false;
}

static void use_new_snapshot() {
    PopActiveSnapshot();
    PushActiveSnapshot(GetTransactionSnapshot());
}

// Runs in a transaction of its own and commits at once, because a late enqueue may wait for the
// lock.
static void empty_segment(int number, Round& round, Micros now) {
    if (!begin_sql_work("emptying a segment", "pg_outbox"))
        return;
    if (is_free(number)) {
        SPI_finish();
        const bool locked = ConditionalLockRelationOid(segments[number].table, AccessExclusiveLock);
        // Every transaction that wrote to the segment has ended, and a new snapshot sees its rows.
        use_new_snapshot();
        SPI_connect();
        if (!locked) {
            come_back_at(round, now + locked_pause);
        } else if (const bool free = is_free(number); free && is_being_read(number)) {
            // The relay has settled all of it, and told so, before it lets go of the window.
            come_back_at(round, now + locked_pause);
        } else if (free) {
            execute(psprintf("TRUNCATE ONLY outbox.event_%d", number), SPI_OK_UTILITY);
            execute(psprintf("UPDATE outbox.ring SET since = clock_timestamp() WHERE number = %d",
                             number),
                    SPI_OK_UPDATE);
            round.changed = true;
        }
    }
    end_sql_work();
}

static void empty_when_due(int number, Round& round, Micros now) {
    const Segment& segment = segments[number];
    if (segment.current || segment.empty)
        return;
    const Micros due = end_of(segment.since, seconds(settings::retention), now);
    if (now < due)
        come_back_at(round, due);
    else if (now < look_not_before[number])
        come_back_at(round, look_not_before[number]);
    else
        empty_segment(number, round, now);
}

// ---------------------------------------------------------------------------------------------

static bool relays_are_busy() {
    for (int i = 0; i < shared->slots_used; i++) {
        const WorkerSlot& slot = shared->slots[i];
        if (slot.kind == WorkerKind::relay && slot.database == MyDatabaseId && slot.unsettled > 0)
            return true;
    }
    return false;
}

// Drops old receipts now and then. An idle database has none to drop.
static void tend_receipts(Micros now) {
    static Micros due = 0;
    if (now < due)
        return;
    execute("SELECT outbox_internal.turn_receipts()", SPI_OK_SELECT);
    const Micros pause = is_true("turn_receipts") ? memory_pause : locked_pause;
    due = now + Min(pause, seconds(settings::receipt_retention));
}

// Drops old source events now and then.
static void tend_source_events(Round& round, Micros now) {
    static Micros due = 0;
    if (now < due)
        return;
    execute("SELECT outbox_internal.forget_source_events()", SPI_OK_SELECT);
    const bool more = is_true("forget_source_events");
    if (more)
        come_back_at(round, now);
    else
        due = now + Min(memory_pause, seconds(settings::source_event_retention));
}

static Round tend_once() {
    Round round;
    const Micros now = steady_now();
    if (!begin_sql_work("tending the segments", "pg_outbox"))
        return round;
    tend_receipts(now);
    tend_source_events(round, now);
    read_ring();
    watch_size(round, now);
    move_on_when_due(round, now);
    end_sql_work();
    if (round.changed)  // `segments` is out of date
        return round;
    for (int i = 0; i < segment_count; i++)
        empty_when_due(i, round, now);
    if (relays_are_busy())
        come_back_at(round, now + busy_pause);
    return round;
}

// After a move the old segment may be emptied, and after that another move may be possible.
Micros tend_segments() {
    Round round;
    do {
        round = tend_once();
        handle_signals();
    } while (round.changed);
    return round.again;
}

}  // namespace outbox
