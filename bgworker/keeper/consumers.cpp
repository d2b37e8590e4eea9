#include "bgworker/keeper/consumers.hpp"

#include "bgworker/base/log_quota.hpp"
#include "extension/base/outside_text.hpp"

namespace outbox {

// outbox.max_workers allows no more workers than this.
static constexpr int max_runnable_consumers = 1024;
// inbox_internal.consumer_id() accepts names of up to 249 bytes; the table may hold others.
static constexpr Size max_consumer_name = 1024;
// Enough for the confirmed handlers of a role, 66 bytes each, and its other settings.
static constexpr Size max_role_settings = 4 * 1024 * 1024;

// ---------------------------------------------------------------------------------------------
// The log
// ---------------------------------------------------------------------------------------------

// Each refusal is logged once, and their number is bounded. The role that writes inbox.consumer can
// make any number of rows, and change them all the time.
struct LoggedRefusal {
    uint32 hash;
    bool current;
};
static constexpr int max_refusals = LogQuota::max_lines;
static LoggedRefusal refusals[max_refusals];
static int refusal_count = 0;

static LogQuota quota;

bool remembers_refusals() {
    return refusal_count > 0 || quota.is_running();
}

static bool is_new(uint32 hash) {
    for (int i = 0; i < refusal_count; i++)
        if (refusals[i].hash == hash) {
            refusals[i].current = true;
            return false;
        }
    if (refusal_count == max_refusals)
        return false;
    refusals[refusal_count++] = {hash, true};
    return true;
}

static void begin_refusals() {
    for (int i = 0; i < refusal_count; i++)
        refusals[i].current = false;
}

static void forget_old_refusals() {
    int kept = 0;
    for (int i = 0; i < refusal_count; i++)
        if (refusals[i].current)
            refusals[kept++] = refusals[i];
    refusal_count = kept;
}

static void refuse(int32 id, const char* name, const char* role, const char* why,
                   const char* hint) {
    const uint32 hash = hash_combine(
        hash_combine(hash_bytes_uint32(static_cast<uint32>(id)), string_hash(role, NAMEDATALEN)),
        string_hash(why, strlen(why) + 1));
    if (is_new(hash) && quota.take())
        ereport(LOG,
                (errmsg("consumer \"%s\" is not processed", NameForLog(name).text),
                 errdetail("Role \"%s\": %s.", NameForLog(role).text, why), errhint("%s", hint)));
}

// ---------------------------------------------------------------------------------------------
// Confirmations of a role
// ---------------------------------------------------------------------------------------------

// Returns the settings of a role in this database; nullptr if it has none, or more than are read.
static ArrayType* settings_of(Oid role) {
    ScanKeyData keys[2];
    ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(MyDatabaseId));
    ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(role));
    Relation catalog = table_open(DbRoleSettingRelationId, AccessShareLock);
    SysScanDesc scan =
        systable_beginscan(catalog, DbRoleSettingDatidRolidIndexId, true, nullptr, 2, keys);
    ArrayType* settings = nullptr;
    HeapTuple tuple = systable_getnext(scan);
    if (HeapTupleIsValid(tuple)) {
        bool is_null;
        const Datum value = heap_getattr(tuple, Anum_pg_db_role_setting_setconfig,
                                         RelationGetDescr(catalog), &is_null);
        if (!is_null && toast_raw_datum_size(value) <= max_role_settings)
            settings = DatumGetArrayTypePCopy(value);
    }
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);
    return settings;
}

// Returns the value of inbox.confirmed for a role in this database; nullptr if it is not set.
static const char* confirmed_by(Oid role) {
    static constexpr char name[] = "inbox.confirmed=";
    ArrayType* settings = settings_of(role);
    if (settings == nullptr || ARR_NDIM(settings) != 1 || ARR_ELEMTYPE(settings) != TEXTOID)
        return nullptr;
    ArrayIterator iterator = array_create_iterator(settings, 0, nullptr);
    Datum value;
    bool is_null;
    while (array_iterate(iterator, &value, &is_null)) {
        if (is_null)
            continue;
        const char* setting = TextDatumGetCString(value);
        if (strncmp(setting, name, strlen(name)) == 0)
            return setting + strlen(name);
    }
    return nullptr;
}

// Returns whether the role has confirmed handlers of a consumer with this name. Tokens of
// inbox_internal.confirmation begin with the hash of the name. The processor checks each handler.
static bool has_confirmed(Oid role, Datum name) {
    const char* tokens = confirmed_by(role);
    if (tokens == nullptr)
        return false;
    const auto* hash =
        reinterpret_cast<const bytea*>(DatumGetPointer(DirectFunctionCall1(sha256_bytea, name)));
    char beginning[34];
    for (int i = 0; i < 16; i++)
        snprintf(beginning + 2 * i, 3, "%02x", static_cast<unsigned char>(VARDATA_ANY(hash)[i]));
    beginning[32] = ':';
    beginning[33] = '\0';
    return strstr(tokens, beginning) != nullptr;
}

// ---------------------------------------------------------------------------------------------
// inbox.consumer
// ---------------------------------------------------------------------------------------------

// The columns that this file reads, of the types it expects.
struct ConsumerColumns {
    AttrNumber id, name, role, subscriptions;
};

static AttrNumber column_of(Oid relation, const char* name, Oid type) {
    const AttrNumber number = get_attnum(relation, name);
    return number > 0 && get_atttype(relation, number) == type ? number : InvalidAttrNumber;
}

static bool find_columns(Relation consumers, ConsumerColumns& columns) {
    const Oid table = RelationGetRelid(consumers);
    columns = {column_of(table, "id", INT4OID), column_of(table, "name", TEXTOID),
               column_of(table, "role", NAMEOID), column_of(table, "subscriptions", INT4OID)};
    return consumers->rd_rel->relkind == RELKIND_RELATION && columns.id && columns.name &&
           columns.role && columns.subscriptions;
}

// Returns true if the row is a consumer that the server should process.
static bool read_consumer(Relation consumers, const ConsumerColumns& columns, TupleTableSlot* row,
                          RunnableConsumer& consumer) {
    const auto is_null = [&](AttrNumber n) { return row->tts_isnull[n - 1]; };
    const auto value = [&](AttrNumber n) { return row->tts_values[n - 1]; };
    if (is_null(columns.id) || is_null(columns.name) || is_null(columns.role) ||
        is_null(columns.subscriptions) || DatumGetInt32(value(columns.subscriptions)) <= 0)
        return false;
    consumer.id = DatumGetInt32(value(columns.id));
    const char* role = pstrdup(NameStr(*DatumGetName(value(columns.role))));
    // Checked before any other use of the value, which may be a gigabyte long.
    if (toast_raw_datum_size(value(columns.name)) > max_consumer_name + VARHDRSZ) {
        refuse(consumer.id, "", role, "the name of the consumer is too long",
               "Drop it from inbox.consumer.");
        return false;
    }
    consumer.name = TextDatumGetCString(value(columns.name));
    consumer.role = get_role_oid(role, true);
    if (!OidIsValid(consumer.role) ||
        !is_member_of_role(consumers->rd_rel->relowner, consumer.role)) {
        // The owner could write any role into the table.
        refuse(consumer.id, consumer.name, role,
               "the owner of inbox.consumer is not a member of it",
               "See inbox.give_consumer(), or GRANT the role to the owner.");
        return false;
    }
    if (!has_confirmed(consumer.role, value(columns.name))) {
        refuse(consumer.id, consumer.name, role, "it has not confirmed the handlers",
               "See inbox.health(), and inbox.confirm().");
        return false;
    }
    return true;
}

void visit_runnable_consumers(void (*visit)(const RunnableConsumer& consumer)) {
    const Oid schema = get_namespace_oid("inbox", true);
    const Oid table = OidIsValid(schema) ? get_relname_relid("consumer", schema) : InvalidOid;
    Relation consumers = OidIsValid(table) ? try_relation_open(table, AccessShareLock) : nullptr;
    if (consumers == nullptr)
        return;
    begin_refusals();
    ConsumerColumns columns;
    if (find_columns(consumers, columns)) {
        MemoryContext of_row = AllocSetContextCreate(CurrentMemoryContext, "consumer of pg_inbox",
                                                     ALLOCSET_DEFAULT_SIZES);
        TableScanDesc scan = table_beginscan(consumers, GetActiveSnapshot(), 0, nullptr);
        TupleTableSlot* row = table_slot_create(consumers, nullptr);
        int found = 0;
        while (found < max_runnable_consumers &&
               table_scan_getnextslot(scan, ForwardScanDirection, row)) {
            CHECK_FOR_INTERRUPTS();
            slot_getallattrs(row);
            MemoryContext before = MemoryContextSwitchTo(of_row);
            RunnableConsumer consumer;
            const bool runs = read_consumer(consumers, columns, row, consumer);
            MemoryContextSwitchTo(before);
            if (runs) {
                visit(consumer);
                found++;
            }
            MemoryContextReset(of_row);
        }
        ExecDropSingleTupleTableSlot(row);
        table_endscan(scan);
        MemoryContextDelete(of_row);
    }
    forget_old_refusals();
    relation_close(consumers, AccessShareLock);
}

}  // namespace outbox
