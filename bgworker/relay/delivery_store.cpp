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

// An array that is filled from records, with room for all of them.
struct ArrayBuilder {
    Oid type;
    int16 length;
    bool by_value;
    char align;
    Datum* values;
    int count;

    void add(Datum value) { values[count++] = value; }
    Datum datum() const {
        return PointerGetDatum(construct_array(values, count, type, length, by_value, align));
    }
};

static ArrayBuilder array_of(Oid type, size_t room) {
    ArrayBuilder array{};
    array.type = type;
    get_typlenbyvalalign(type, &array.length, &array.by_value, &array.align);
    array.values = static_cast<Datum*>(palloc(Max(room, 1) * sizeof(Datum)));
    return array;
}

static Datum uuid_datum(const Uuid& uuid) {
    auto* copy = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
    memcpy(copy->data, uuid.data(), UUID_LEN);
    return UUIDPGetDatum(copy);
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

struct RecordArrays {
    ArrayBuilder refused_xids, refused_positions, errors, permanent;
    ArrayBuilder released_xids, released_positions, released_errors, steps;
    ArrayBuilder moved_xids, moved_positions;
    ArrayBuilder parked_xids, parked_positions;
    ArrayBuilder confirmed, unsent;
    ArrayBuilder keys;
};

static RecordArrays arrays_of(const std::vector<Record>& records) {
    const size_t n = records.size();
    RecordArrays arrays = {
        array_of(XID8OID, n), array_of(INT8OID, n), array_of(TEXTOID, n), array_of(BOOLOID, n),
        array_of(XID8OID, n), array_of(INT8OID, n), array_of(TEXTOID, n), array_of(INT4OID, n),
        array_of(XID8OID, n), array_of(INT8OID, n), array_of(XID8OID, n), array_of(INT8OID, n),
        array_of(INT8OID, n), array_of(INT8OID, n), array_of(TEXTOID, n),
    };
    for (const Record& record : records) {
        const Event& event = *record.event;
        const Datum xid = UInt64GetDatum(event.xid);
        const Datum position = Int64GetDatum(event.position);
        switch (record.kind) {
            case Record::Kind::refused:
                arrays.refused_xids.add(xid);
                arrays.refused_positions.add(position);
                arrays.errors.add(text_from_outside(record.error));
                arrays.permanent.add(BoolGetDatum(record.permanent));
                break;
            case Record::Kind::released:
                arrays.released_xids.add(xid);
                arrays.released_positions.add(position);
                arrays.released_errors.add(text_from_outside(record.error));
                arrays.steps.add(Int32GetDatum(static_cast<int32>(record.steps)));
                break;
            case Record::Kind::moved:
                arrays.moved_xids.add(xid);
                arrays.moved_positions.add(position);
                break;
            case Record::Kind::parked:
                arrays.parked_xids.add(xid);
                arrays.parked_positions.add(position);
                break;
            case Record::Kind::confirmed:
                arrays.confirmed.add(position);
                break;
            case Record::Kind::unsent:
                arrays.unsent.add(position);
                break;
        }
        if (!event.ordering_key.empty())
            arrays.keys.add(server_text(event.ordering_key));
    }
    return arrays;
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
        DatumGetCString(DirectFunctionCall1(uuid_out, uuid_datum(event.event_id)));
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

static void record_refused(const char* destination, const RecordArrays& arrays,
                           const std::vector<Record>& records) {
    const Oid types[] = {NAMEOID, XID8ARRAYOID, INT8ARRAYOID, TEXTARRAYOID, BOOLARRAYOID};
    const Datum values[] = {name_datum(destination), arrays.refused_xids.datum(),
                            arrays.refused_positions.datum(), arrays.errors.datum(),
                            arrays.permanent.datum()};
    run("SELECT position, state = 'DEAD', attempts FROM outbox_internal.fail_events($1, $2, $3, "
        "$4, $5)",
        lengthof(types), types, values);
    check_result("fail_events", {INT8OID, BOOLOID, INT4OID});
    bool is_null;
    for (uint64 i = 0; i < SPI_processed; i++) {
        const Record* record = refused_at(records, DatumGetInt64(result_value(i, 1, &is_null)));
        if (record != nullptr)
            log_refusal(destination, *record, DatumGetBool(result_value(i, 2, &is_null)),
                        DatumGetInt32(result_value(i, 3, &is_null)));
    }
}

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

void record_events(const char* destination, Pipeline& pipeline) {
    run_core([&] { pipeline.gather_records(); });
    const RecordArrays arrays = arrays_of(pipeline.records());
    // First those that may have ended meanwhile and were read from the log once more.
    if (arrays.moved_positions.count > 0) {
        const Oid types[] = {NAMEOID, UUIDOID, XID8ARRAYOID, INT8ARRAYOID};
        const Datum values[] = {name_datum(destination), my_token(), arrays.moved_xids.datum(),
                                arrays.moved_positions.datum()};
        run("SELECT outbox_internal.move_events($1, $2, $3, $4)", lengthof(types), types, values);
    }
    if (arrays.released_positions.count > 0) {
        const Oid types[] = {NAMEOID, XID8ARRAYOID, INT8ARRAYOID, TEXTARRAYOID, INT4ARRAYOID};
        const Datum values[] = {name_datum(destination), arrays.released_xids.datum(),
                                arrays.released_positions.datum(), arrays.released_errors.datum(),
                                arrays.steps.datum()};
        run("SELECT outbox_internal.release_events($1, $2, $3, $4, $5)", lengthof(types), types,
            values);
    }
    if (arrays.refused_positions.count > 0)
        record_refused(destination, arrays, pipeline.records());
    if (arrays.parked_positions.count > 0) {
        const Oid types[] = {NAMEOID, XID8ARRAYOID, INT8ARRAYOID};
        const Datum values[] = {name_datum(destination), arrays.parked_xids.datum(),
                                arrays.parked_positions.datum()};
        run("SELECT outbox_internal.park_events($1, $2, $3)", lengthof(types), types, values);
    }
    const Oid retry_types[] = {NAMEOID, UUIDOID, INT8ARRAYOID};
    if (arrays.confirmed.count > 0) {
        const Datum values[] = {name_datum(destination), my_token(), arrays.confirmed.datum()};
        run("SELECT outbox_internal.settle_events($1, $2, $3)", lengthof(retry_types), retry_types,
            values);
    }
    if (arrays.unsent.count > 0) {
        const Datum values[] = {name_datum(destination), my_token(), arrays.unsent.datum()};
        run("SELECT outbox_internal.unlock_events($1, $2, $3)", lengthof(retry_types), retry_types,
            values);
    }
    promote(destination, arrays.keys, pipeline);
}

// ---------------------------------------------------------------------------------------------
// Retries
// ---------------------------------------------------------------------------------------------

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

void save_receipts(const char* destination, const std::vector<Receipt>& receipts) {
    if (receipts.empty())
        return;
    ArrayBuilder event_ids = array_of(UUIDOID, receipts.size());
    ArrayBuilder positions = array_of(INT8OID, receipts.size());
    ArrayBuilder times = array_of(FLOAT8OID, receipts.size());
    ArrayBuilder message_ids = array_of(TEXTOID, receipts.size());
    for (const Receipt& receipt : receipts) {
        event_ids.add(uuid_datum(receipt.event_id));
        positions.add(Int64GetDatum(receipt.position));
        times.add(Float8GetDatum(static_cast<double>(receipt.published_at) / USECS_PER_SEC));
        message_ids.add(text_from_outside(receipt.message_id));
    }
    const Oid types[] = {NAMEOID, UUIDARRAYOID, INT8ARRAYOID, FLOAT8ARRAYOID, TEXTARRAYOID};
    const Datum values[] = {name_datum(destination), event_ids.datum(), positions.datum(),
                            times.datum(), message_ids.datum()};
    run("SELECT outbox_internal.add_receipts($1, $2, $3, $4, $5)", lengthof(types), types, values);
}

Micros next_retry(const char* destination, const Clock& clock) {
    const Oid types[] = {NAMEOID};
    const Datum values[] = {name_datum(destination)};
    run("SELECT outbox_internal.next_retry($1)", lengthof(types), types, values);
    check_result_row("next_retry", {FLOAT8OID});
    bool is_null;
    const Datum wait = result_value(0, 1, &is_null);
    return is_null ? never
                   : clock.now() + static_cast<Micros>(DatumGetFloat8(wait) * USECS_PER_SEC);
}

}  // namespace outbox
