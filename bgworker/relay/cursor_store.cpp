#include "bgworker/relay/cursor_store.hpp"

#include "bgworker/base/query_result.hpp"
#include "bgworker/base/worker.hpp"
#include "extension/base/boundary.hpp"
#include "extension/base/outside_text.hpp"

namespace outbox {

// The number of this relay's row, and the token under which it may change the row.
static int32 row_number = -1;
static int64 lease = -1;

static Datum text_of(const Snapshot& snapshot) {
    char* text = static_cast<char*>(palloc(snapshot.text_size()));
    snapshot.write_text(text);
    return CStringGetTextDatum(text);
}

static constexpr const char* table = "cursor";

// Runs a statement that returns columns of these types. Returns true if it returned a row,
// which is then in SPI_tuptable.
static bool execute_for_row(const char* statement, int count, Oid* types, Datum* values,
                            const char* nulls, std::initializer_list<Oid> result) {
    const int code = SPI_execute_with_args(statement, count, types, values, nulls, false, 1);
    if (code != SPI_OK_SELECT && code != SPI_OK_UPDATE_RETURNING && code != SPI_OK_INSERT_RETURNING)
        elog(ERROR, "could not access outbox.cursor: %s", SPI_result_code_string(code));
    check_result(table, result);
    return SPI_processed > 0;
}

// Returns the name of the destination, which cannot change before the transaction ends; nullptr if
// it is gone.
static const char* lock_name(Oid server) {
    if (!OidIsValid(server))
        return "default";
    LockDatabaseObject(ForeignServerRelationId, server, 0, AccessShareLock);
    const ForeignServer* row = GetForeignServerExtended(server, FSV_MISSING_OK);
    return row != nullptr ? row->servername : nullptr;
}

static bool take_existing(Oid server, const char* name, Cursor& cursor) {
    NameData destination;
    namestrcpy(&destination, name);
    Oid types[] = {NAMEOID, OIDOID};
    Datum values[] = {NameGetDatum(&destination), ObjectIdGetDatum(server)};
    if (!execute_for_row(
            "WITH taken AS ("
            "    UPDATE outbox.cursor SET lease = lease + 1, server = $2 WHERE destination = $1 "
            "    RETURNING *), "
            "told AS ("
            "    INSERT INTO outbox.relay_lease AS t (number, lease) SELECT number, lease FROM "
            "taken "
            "        ON CONFLICT ON CONSTRAINT relay_lease_pkey "
            "        DO UPDATE SET lease = excluded.lease) "
            "SELECT lease, done::text, upto::text, position, system_identifier, number, "
            "       greatest(live_after, 0), greatest(published, 0), greatest(failures, 0), "
            "       outbox_internal.unix_micros(failing_since), resumed FROM taken",
            lengthof(types), types, values, nullptr,
            {INT8OID, TEXTOID, TEXTOID, INT8OID, INT8OID, INT4OID, INT8OID, INT8OID, INT8OID,
             INT8OID, INT8OID}))
        return false;

    lease = DatumGetInt64(required_value(table, 0, 1));
    const char* done = TextDatumGetCString(required_value(table, 0, 2));
    bool no_upto;
    const Datum upto_value = result_value(0, 3, &no_upto);
    const char* upto = no_upto ? nullptr : TextDatumGetCString(upto_value);
    const int64 position = DatumGetInt64(required_value(table, 0, 4));
    const int64 system = DatumGetInt64(required_value(table, 0, 5));
    row_number = DatumGetInt32(required_value(table, 0, 6));
    const int64 live_after = DatumGetInt64(required_value(table, 0, 7));
    const int64 published = DatumGetInt64(required_value(table, 0, 8));
    const int64 failures = DatumGetInt64(required_value(table, 0, 9));
    const int64 failing_since = DatumGetInt64(required_value(table, 0, 10));
    const int64 resumed = DatumGetInt64(required_value(table, 0, 11));

    run_core([&] {
        cursor = Cursor{};
        cursor.number = row_number;
        cursor.done = Snapshot::parse(done).value_or(Snapshot{});
        if (upto != nullptr)
            cursor.upto = Snapshot::parse(upto);
        cursor.position = position;
        cursor.live_after = live_after;
        cursor.published = static_cast<uint64>(published);
        cursor.failures = static_cast<uint64>(failures);
        cursor.failing_since = failing_since;
        cursor.resumed = resumed;
        cursor.foreign = system != static_cast<int64>(GetSystemIdentifier());
    });
    return true;
}

static void make_new(Oid server, const char* name) {
    NameData destination;
    namestrcpy(&destination, name);
    Oid types[] = {NAMEOID, OIDOID};
    Datum values[] = {NameGetDatum(&destination), ObjectIdGetDatum(server)};
    const int code = SPI_execute_with_args("SELECT outbox_internal.make_cursor($1, $2)",
                                           lengthof(types), types, values, nullptr, false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not make a cursor: %s", SPI_result_code_string(code));
}

bool take_cursor(Oid server, Cursor& cursor) {
    const char* name = lock_name(server);
    if (name == nullptr)
        return false;
    if (take_existing(server, name, cursor))
        return true;
    make_new(server, name);
    return take_existing(server, name, cursor);
}

Arguments my_lease() {
    Arguments arguments;
    arguments.count = 0;
    arguments.add(INT4OID, Int32GetDatum(row_number));
    arguments.add(INT8OID, Int64GetDatum(lease));
    return arguments;
}

CursorState look_at_cursor() {
    Oid types[] = {INT4OID, INT8OID};
    Datum values[] = {Int32GetDatum(row_number), Int64GetDatum(lease)};
    if (!execute_for_row(
            "SELECT c.paused, c.resumed "
            "  FROM outbox.cursor AS c JOIN outbox.relay_lease AS t USING (number, lease)"
            " WHERE c.number = $1 AND c.lease = $2",
            lengthof(types), types, values, nullptr, {BOOLOID, INT8OID}))
        return {.ours = false, .paused = false, .resumed = 0};
    return {.ours = true,
            .paused = DatumGetBool(required_value(table, 0, 1)),
            .resumed = DatumGetInt64(required_value(table, 0, 2))};
}

void lock_tables() {
    const Oid schema = get_namespace_oid("outbox", false);
    for (const char* name : {"cursor", "delivery"})
        LockRelationOid(get_relname_relid(name, schema), RowExclusiveLock);
}

CallOutcome lock_cursor() {
    return call("relay_lock", "SELECT outcome FROM outbox_internal.relay_lock($1, $2)", my_lease(),
                {TEXTOID});
}

bool wait_for_cursor() {
    Oid types[] = {INT4OID, INT8OID};
    Datum values[] = {Int32GetDatum(row_number), Int64GetDatum(lease)};
    return execute_for_row(
        "SELECT number FROM outbox.cursor WHERE number = $1 AND lease = $2 FOR UPDATE",
        lengthof(types), types, values, nullptr, {INT4OID});
}

CallOutcome pause_destination(std::string_view why) {
    Arguments arguments = my_lease();
    arguments.add(TEXTOID, text_from_outside(why));
    return call("relay_pause", "SELECT outbox_internal.relay_pause($1, $2, $3)", arguments,
                {TEXTOID});
}

// Adds the arguments that have the receipts.
static void add_receipts(Arguments& arguments, const std::vector<Receipt>& receipts) {
    ArrayBuilder event_ids = array_of(UUIDOID, receipts.size());
    ArrayBuilder positions = array_of(INT8OID, receipts.size());
    ArrayBuilder times = array_of(FLOAT8OID, receipts.size());
    ArrayBuilder message_ids = array_of(TEXTOID, receipts.size());
    for (const Receipt& receipt : receipts) {
        event_ids.add(uuid_datum(receipt.event_id.data()));
        positions.add(Int64GetDatum(receipt.position));
        times.add(Float8GetDatum(static_cast<double>(receipt.published_at) / USECS_PER_SEC));
        message_ids.add(text_from_outside(receipt.message_id));
    }
    for (const ArrayBuilder& array : {event_ids, positions, times, message_ids})
        arguments.add(array);
}

static void add_passed(Arguments& arguments, const Relay& relay) {
    const std::span<const NotedTransactions::Passed> passed = relay.passed_transactions();
    ArrayBuilder firsts = array_of(INT8OID, passed.size());
    ArrayBuilder lasts = array_of(INT8OID, passed.size());
    for (const NotedTransactions::Passed& line : passed) {
        firsts.add(Int64GetDatum(line.first));
        lasts.add(Int64GetDatum(line.last));
    }
    arguments.add(firsts);
    arguments.add(lasts);
}

CallOutcome save_progress(const Relay& relay) {
    const Cursor& cursor = relay.cursor();
    Arguments arguments = my_lease();
    if (relay.may_save_cursor())
        arguments.add(TEXTOID, text_of(cursor.done));
    else
        arguments.add_null(TEXTOID);
    if (cursor.upto)
        arguments.add(TEXTOID, text_of(*cursor.upto));
    else
        arguments.add_null(TEXTOID);
    arguments.add(INT8OID, Int64GetDatum(cursor.position));
    arguments.add(BOOLOID, BoolGetDatum(relay.flush_is_due()));
    add_receipts(arguments, relay.pipeline().receipts());
    add_passed(arguments, relay);
    arguments.add(INT8OID, Int64GetDatum(static_cast<int64>(relay.stats().all_delivered())));
    arguments.add(INT8OID, Int64GetDatum(static_cast<int64>(relay.stats().all_failures())));
    arguments.add(INT8OID, Int64GetDatum(relay.outage_to_save()));
    return call("relay_save",
                "SELECT outbox_internal.relay_save($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, "
                "$12, $13, $14, $15)",
                arguments, {TEXTOID});
}

}  // namespace outbox
