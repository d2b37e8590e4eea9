#include "bgworker/relay/delivery_store.hpp"

#include "bgworker/base/parameters.hpp"
#include "bgworker/base/query_result.hpp"
#include "bgworker/relay/event_copy.hpp"
#include "core/relay/condition_log.hpp"
#include "extension/base/boundary.hpp"
#include "extension/base/outside_text.hpp"
#include "extension/base/steady_time.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// Retries taken from the table at a time.
static constexpr int max_retries = 256;
static constexpr int64 max_retry_bytes = 1024 * 1024;

// ---------------------------------------------------------------------------------------------
// Calling functions of SQL
// ---------------------------------------------------------------------------------------------

// The token under which this process has retries in flight.
static Datum my_token() {
    static pg_uuid_t token;
    static bool made = false;
    if (!made && !pg_strong_random(&token, sizeof token))
        elog(ERROR, "could not generate random values");
    made = true;
    return UUIDPGetDatum(&token);
}

static void run(const char* statement, int count, const Oid* types, const Datum* values,
                const char* nulls = nullptr) {
    const int code = SPI_execute_with_args(statement, count, const_cast<Oid*>(types),
                                           const_cast<Datum*>(values), nulls, false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not access outbox.delivery: %s", SPI_result_code_string(code));
}

// ---------------------------------------------------------------------------------------------
// Start
// ---------------------------------------------------------------------------------------------

void begin_deliveries(const char* destination, const Cursor& cursor,
                      std::vector<std::int64_t>& recorded) {
    char* done = static_cast<char*>(palloc(cursor.done.text_size()));
    cursor.done.write_text(done);
    const Oid types[] = {NAMEOID, TEXTOID};
    const Datum values[] = {name_datum(destination), CStringGetTextDatum(done)};
    const char nulls[] = {' ', cursor.foreign ? 'n' : ' '};
    run("SELECT outbox_internal.unlock_all($1)", 1, types, values);
    run("SELECT position FROM outbox.delivery WHERE destination = $1 "
        "AND ($2 IS NULL OR NOT pg_visible_in_snapshot(xid, $2::pg_snapshot)) ORDER BY position",
        lengthof(types), types, values, nulls);
    check_result("delivery", {INT8OID});
    run_core([&] {
        recorded.clear();
        recorded.reserve(SPI_processed);
    });
    bool is_null;
    for (uint64 i = 0; i < SPI_processed; i++)
        recorded.push_back(DatumGetInt64(result_value(i, 1, &is_null)));  // does not allocate
}

void load_held_keys(const char* destination, Pipeline& pipeline) {
    const Oid types[] = {NAMEOID, INT4OID};
    const Datum values[] = {name_datum(destination),
                            Int32GetDatum(static_cast<int32>(Pipeline::max_held_keys))};
    run("SELECT outbox_internal.held_keys($1, $2)", lengthof(types), types, values);
    check_result("held_keys", {TEXTOID});
    auto* keys = static_cast<Bytes*>(palloc(Max(SPI_processed, 1) * sizeof(Bytes)));
    const uint64 count = SPI_processed;
    for (uint64 i = 0; i < count; i++)
        keys[i] = utf8_of(required_value("held_keys", i, 1));
    run_core([&] {
        std::vector<std::string> held;
        held.reserve(count);
        for (uint64 i = 0; i < count; i++)
            held.emplace_back(keys[i].data, keys[i].size);
        pipeline.hold_keys(std::move(held));
    });
}

// ---------------------------------------------------------------------------------------------
// Recording
// ---------------------------------------------------------------------------------------------

// Events of one kind of record.
struct Records {
    ArrayBuilder xids, positions, errors, steps, permanent;

    void add(const Record& record) {
        xids.add(UInt64GetDatum(record.event->xid));
        positions.add(Int64GetDatum(record.event->position));
        errors.add(text_from_outside(record.error));
        steps.add(Int32GetDatum(static_cast<int32>(record.steps)));
        permanent.add(BoolGetDatum(record.permanent));
    }
};

static Records room_for(size_t count) {
    return {array_of(XID8OID, count), array_of(INT8OID, count), array_of(TEXTOID, count),
            array_of(INT4OID, count), array_of(BOOLOID, count)};
}

// In the order of Record::Kind.
struct RecordsByKind {
    Records of[6];
    ArrayBuilder keys;

    const Records& operator[](Record::Kind kind) const { return of[static_cast<int>(kind)]; }
};

static RecordsByKind by_kind(const std::vector<Record>& records) {
    RecordsByKind result;
    for (Records& one : result.of)
        one = room_for(records.size());
    result.keys = array_of(TEXTOID, records.size());
    for (const Record& record : records) {
        result.of[static_cast<int>(record.kind)].add(record);
        if (!record.event->ordering_key.empty())
            result.keys.add(server_text(record.event->ordering_key));
    }
    return result;
}

static const Record* refused_at(const std::vector<Record>& records, int64 position) {
    for (const Record& record : records)
        if (record.kind == Record::Kind::refused && record.event->position == position)
            return &record;
    return nullptr;
}

// Logs only some of many refused events; outbox.delivery has them all.
static void log_refusal(const char* destination, const Record& record, bool dead, int attempts) {
    static LineBudget of_refusals, of_dead_letters;
    LineBudget& budget = dead ? of_dead_letters : of_refusals;
    if (!budget.take(steady_now()))
        return;
    const auto left_out = static_cast<unsigned long long>(budget.left_out());
    const Event& event = *record.event;
    const char* id_text =
        DatumGetCString(DirectFunctionCall1(uuid_out, uuid_datum(event.event_id.data())));
    const char* key = line_from_outside(event.ordering_key);
    const char* error = line_from_outside(record.error);
    if (dead)
        ereport(WARNING,
                (errmsg("event %s is a dead letter of destination \"%s\": %s", id_text,
                        NameForLog(destination).text, error),
                 errdetail("Attempt %d; ordering key \"%s\"; lines left out before: %llu.",
                           attempts, key, left_out),
                 errhint("outbox.redrive() delivers it again, outbox.discard() gives it up.")));
    else
        ereport(LOG, (errmsg("destination \"%s\" refused event %s: %s",
                             NameForLog(destination).text, id_text, error),
                      errdetail("Attempt %d; ordering key \"%s\"; lines left out before: %llu.",
                                attempts, key, left_out)));
}

struct Elements {
    Datum* values;
    int count;
};

// Returns the elements of an array in the row; none if it is null.
static Elements elements_at(int column, Oid type) {
    bool is_null;
    const Datum array = result_value(0, column, &is_null);
    Elements elements{};
    if (is_null)
        return elements;
    int16 length;
    bool by_value;
    char align;
    get_typlenbyvalalign(type, &length, &by_value, &align);
    deconstruct_array(DatumGetArrayTypeP(array), type, length, by_value, align, &elements.values,
                      nullptr, &elements.count);
    return elements;
}

static void free_keys(const Elements& keys, Pipeline& pipeline) {
    for (int i = 0; i < keys.count; i++) {
        const Bytes key = utf8_of(keys.values[i]);
        run_core([&] { pipeline.free_key({key.data, key.size}); });
    }
}

static Micros due_after(Datum wait, bool is_null, const Clock& clock) {
    return is_null ? never
                   : clock.now() + static_cast<Micros>(DatumGetFloat8(wait) * USECS_PER_SEC);
}

static Arguments arguments_of(Relay& relay) {
    const RecordsByKind records = by_kind(relay.pipeline().records());
    const Records& moved = records[Record::Kind::moved];
    const Records& released = records[Record::Kind::released];
    const Records& refused = records[Record::Kind::refused];
    const Records& parked = records[Record::Kind::parked];
    Arguments arguments = my_lease();
    arguments.add(UUIDOID, my_token());
    for (const ArrayBuilder& array :
         {moved.xids, moved.positions, released.xids, released.positions, released.errors,
          released.steps, refused.xids, refused.positions, refused.errors, refused.permanent,
          parked.xids, parked.positions, records[Record::Kind::confirmed].positions,
          records[Record::Kind::unsent].positions, records.keys})
        arguments.add(array);
    if (!relay.has_transactions()) {
        arguments.add_null(INT8ARRAYOID);
        arguments.add_null(INT8ARRAYOID);
        return arguments;
    }
    const std::span<const NotedTransactions::Passed> passed = relay.passed_transactions();
    ArrayBuilder settled_from = array_of(INT8OID, passed.size());
    for (const NotedTransactions::Passed& line : passed)
        settled_from.add(Int64GetDatum(line.first));
    arguments.add(settled_from);
    arguments.add(numbers_or_null(relay.transactions().committed()));
    return arguments;
}

static void log_refusals(const char* destination, const std::vector<Record>& records) {
    const Elements positions = elements_at(3, INT8OID);
    const Elements attempts = elements_at(4, INT4OID);
    const Elements dead = elements_at(5, BOOLOID);
    if (attempts.count != positions.count || dead.count != positions.count)
        elog(ERROR, "relay_record() returned arrays of different lengths");
    for (int i = 0; i < positions.count; i++) {
        const Record* record = refused_at(records, DatumGetInt64(positions.values[i]));
        if (record != nullptr)
            log_refusal(destination, *record, DatumGetBool(dead.values[i]),
                        DatumGetInt32(attempts.values[i]));
    }
}

CallOutcome record_events(const char* destination, Relay& relay, const Clock& clock, Micros& due) {
    const CallOutcome outcome =
        call("relay_record",
             "SELECT outcome, freed_keys, failed_positions, failed_attempts, failed_dead, "
             "next_retry FROM outbox_internal.relay_record($1, $2, $3, $4, $5, $6, $7, $8, $9, "
             "$10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)",
             arguments_of(relay),
             {TEXTOID, TEXTARRAYOID, INT8ARRAYOID, INT4ARRAYOID, BOOLARRAYOID, FLOAT8OID});
    if (outcome != CallOutcome::ok)
        return outcome;
    log_refusals(destination, relay.pipeline().records());
    free_keys(elements_at(2, TEXTOID), relay.pipeline());
    bool is_null;
    const Datum wait = result_value(0, 6, &is_null);
    due = due_after(wait, is_null, clock);
    return outcome;
}

// ---------------------------------------------------------------------------------------------
// Retries
// ---------------------------------------------------------------------------------------------

// Gives the next events of these keys their turn, and frees keys that no event holds any more.
static void promote(const char* destination, const ArrayBuilder& keys, Pipeline& pipeline) {
    const Oid types[] = {NAMEOID, TEXTARRAYOID};
    const Datum values[] = {name_datum(destination), keys.datum()};
    run("SELECT outbox_internal.promote($1, $2)", lengthof(types), types, values);
    check_result("promote", {TEXTOID});
    for (uint64 i = 0; i < SPI_processed; i++) {
        const Bytes key = utf8_of(required_value("promote", i, 1));
        run_core([&] { pipeline.free_key({key.data, key.size}); });
    }
}

// Removes rows that the filter of the destination does not select, and frees their keys.
static void remove_retries(const char* destination, const ArrayBuilder& positions,
                           const ArrayBuilder& keys, Pipeline& pipeline) {
    if (positions.count == 0)
        return;
    const Oid types[] = {NAMEOID, UUIDOID, INT8ARRAYOID};
    const Datum values[] = {name_datum(destination), my_token(), positions.datum()};
    run("SELECT outbox_internal.settle_events($1, $2, $3)", lengthof(types), types, values);
    promote(destination, keys, pipeline);
}

std::size_t load_retries(const char* destination, Expressions* expressions, Pipeline& pipeline) {
    const Oid types[] = {NAMEOID, UUIDOID, INT4OID, INT8OID};
    const Datum values[] = {name_datum(destination), my_token(), Int32GetDatum(max_retries),
                            Int64GetDatum(max_retry_bytes)};
    run("SELECT d.*, d.attempts > 0 OR d.ordering_key <> '' AND coalesce("
        "           (SELECT before.attempts > 0 FROM outbox.delivery AS before"
        "             WHERE before.destination = $1 AND before.ordering_key = d.ordering_key"
        "               AND before.ordering_key <> '' AND before.state <> 'DISCARDED'"
        "               AND before.position < d.position ORDER BY before.position DESC LIMIT 1), "
        "false)"
        "           AS key_failed"
        "  FROM outbox_internal.claim_due($1, $2, NULL, $3, $4) AS d ORDER BY d.position",
        lengthof(types), types, values);
    const uint64 count = SPI_processed;
    SPITupleTable* rows = SPI_tuptable;
    check_event_columns("claim_due", rows->tupdesc);
    const int attempts = result_column("claim_due", "attempts", INT4OID);
    const int key_failed = result_column("claim_due", "key_failed", BOOLOID);
    const int operation = result_column("claim_due", "operation", INT8OID);
    TupleTableSlot* slot = MakeSingleTupleTableSlot(rows->tupdesc, &TTSOpsHeapTuple);
    ArrayBuilder removed = array_of(INT8OID, count);
    ArrayBuilder keys = array_of(TEXTOID, count);
    // From here on nothing can be written until it ends.
    if (expressions != nullptr && expressions->begin() != nullptr)
        elog(ERROR, "expressions of destination \"%s\" have changed", NameForLog(destination).text);
    // The process owns the block until it is admitted; an error ends the process.
    EventBlock* block = nullptr;
    for (uint64 i = 0; i < count; i++) {
        ExecStoreHeapTuple(rows->vals[i], slot, false);
        EventChange change;
        if (expressions != nullptr && !expressions->evaluate(slot, change)) {
            removed.add(slot->tts_values[LogPosition]);
            keys.add(slot->tts_values[LogOrderingKey]);
            continue;
        }
        if (block == nullptr)
            run_core([&] { block = pipeline.take_block(); });
        if (!copy_event(slot, *block, expressions != nullptr ? &change : nullptr)) {
            run_core([&] {
                pipeline.admit_retries(block);
                block = nullptr;
            });
            i--;  // repeat this row with the next block
            continue;
        }
        bool is_null;
        Event& event = block->events().back();
        event.has_failed = DatumGetInt32(slot_getattr(slot, attempts, &is_null)) > 0;
        event.key_failed = DatumGetBool(slot_getattr(slot, key_failed, &is_null));
        slot_getattr(slot, operation, &is_null);
        event.replayed = !is_null;
    }
    if (block != nullptr)
        run_core(
            [&] { block->empty() ? pipeline.put_back(block) : pipeline.admit_retries(block); });
    ExecDropSingleTupleTableSlot(slot);
    if (expressions != nullptr)
        expressions->end();
    remove_retries(destination, removed, keys, pipeline);
    return count;
}

std::size_t hurry_retries(const char* destination, int at_most) {
    const Oid types[] = {NAMEOID, INT4OID};
    const Datum values[] = {name_datum(destination), Int32GetDatum(at_most)};
    run("SELECT outbox_internal.hurry_events($1, $2)", lengthof(types), types, values);
    check_result_row("hurry_events", {INT8OID});
    return static_cast<std::size_t>(DatumGetInt64(required_value("hurry_events", 0, 1)));
}

Micros next_retry(const char* destination, const Clock& clock) {
    const Oid types[] = {NAMEOID};
    const Datum values[] = {name_datum(destination)};
    run("SELECT outbox_internal.next_retry($1)", lengthof(types), types, values);
    check_result_row("next_retry", {FLOAT8OID});
    bool is_null;
    const Datum wait = result_value(0, 1, &is_null);
    return due_after(wait, is_null, clock);
}

}  // namespace outbox
