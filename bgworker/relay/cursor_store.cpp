#include "bgworker/relay/cursor_store.hpp"

#include "bgworker/base/query_result.hpp"
#include "bgworker/base/worker.hpp"
#include "extension/base/boundary.hpp"

namespace outbox {

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

static bool take_existing(Oid server, const char* name, Cursor& cursor, calls::Held& held) {
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

    held.lease = DatumGetInt64(required_value(table, 0, 1));
    const char* done = TextDatumGetCString(required_value(table, 0, 2));
    bool no_upto;
    const Datum upto_value = result_value(0, 3, &no_upto);
    const char* upto = no_upto ? nullptr : TextDatumGetCString(upto_value);
    const int64 position = DatumGetInt64(required_value(table, 0, 4));
    const int64 system = DatumGetInt64(required_value(table, 0, 5));
    held.number = DatumGetInt32(required_value(table, 0, 6));
    held.only_ascii = GetDatabaseEncoding() != PG_UTF8;
    const int64 live_after = DatumGetInt64(required_value(table, 0, 7));
    const int64 published = DatumGetInt64(required_value(table, 0, 8));
    const int64 failures = DatumGetInt64(required_value(table, 0, 9));
    const int64 failing_since = DatumGetInt64(required_value(table, 0, 10));
    const int64 resumed = DatumGetInt64(required_value(table, 0, 11));

    run_core([&] {
        cursor = Cursor{};
        cursor.number = held.number;
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

bool take_cursor(Oid server, Cursor& cursor, calls::Held& held) {
    const char* name = lock_name(server);
    if (name == nullptr)
        return false;
    if (take_existing(server, name, cursor, held))
        return true;
    make_new(server, name);
    return take_existing(server, name, cursor, held);
}

void lock_tables() {
    const Oid schema = get_namespace_oid("outbox", false);
    for (const char* name : {"cursor", "delivery"})
        LockRelationOid(get_relname_relid(name, schema), RowExclusiveLock);
}

bool wait_for_cursor(const calls::Held& held) {
    Oid types[] = {INT4OID, INT8OID};
    Datum values[] = {Int32GetDatum(held.number), Int64GetDatum(held.lease)};
    return execute_for_row(
        "SELECT number FROM outbox.cursor WHERE number = $1 AND lease = $2 FOR UPDATE",
        lengthof(types), types, values, nullptr, {INT4OID});
}

}  // namespace outbox
