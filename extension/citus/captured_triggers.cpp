// Triggers of captures that Citus creates on shards and on other nodes, and their argument
// (sql/pg_outbox/native/citus/capture.sql).
#include "extension/base/owners_rights.hpp"
#include "extension/base/table_form.hpp"
#include "extension/capture/capture_config.hpp"
#include "extension/citus/citus_table.hpp"

namespace outbox {

// A trigger that a statement has created.
struct CreatedTrigger {
    Oid table;
    Oid function;
    const char* argument;  // nullptr if it has none
};

static bool is_ours(Oid function) {
    return function == capture_function("capture_row") ||
           function == capture_function("capture_truncate");
}

static const char* argument_of(HeapTuple row, TupleDesc form) {
    bool is_null;
    const Datum count = SPI_getbinval(row, form, 3, &is_null);
    if (DatumGetInt16(count) != 1)
        return nullptr;
    const bytea* arguments = DatumGetByteaPP(SPI_getbinval(row, form, 4, &is_null));
    return pstrdup(VARDATA_ANY(arguments));  // ends with a zero byte
}

// Triggers that PostgreSQL has created for partitions belong to those of their tables.
static List* created_triggers() {
    if (SPI_execute("SELECT t.tgrelid, t.tgfoid, t.tgnargs, t.tgargs "
                    "FROM pg_catalog.pg_event_trigger_ddl_commands() AS c "
                    "JOIN pg_catalog.pg_trigger AS t ON t.oid = c.objid "
                    "WHERE c.classid = 'pg_catalog.pg_trigger'::pg_catalog.regclass "
                    "AND t.tgparentid = 0",
                    false, 0) != SPI_OK_SELECT)
        elog(ERROR, "cannot look up triggers that were created");
    List* triggers = NIL;
    for (uint64 i = 0; i < SPI_processed; i++) {
        HeapTuple row = SPI_tuptable->vals[i];
        TupleDesc form = SPI_tuptable->tupdesc;
        bool is_null;
        auto* trigger = static_cast<CreatedTrigger*>(palloc(sizeof(CreatedTrigger)));
        trigger->table = DatumGetObjectId(SPI_getbinval(row, form, 1, &is_null));
        trigger->function = DatumGetObjectId(SPI_getbinval(row, form, 2, &is_null));
        trigger->argument = argument_of(row, form);
        triggers = lappend(triggers, trigger);
    }
    return triggers;
}

static bool was_made_now(Oid table) {
    Relation relation = relation_open(table, NoLock);  // CREATE TRIGGER has locked it
    const bool result = relation->rd_createSubid != InvalidSubTransactionId;
    relation_close(relation, NoLock);
    return result;
}

// The row is written for the owner of outbox.captured. The role that creates the trigger must own
// the table: the privilege TRIGGER is not enough to capture it.
static void adopt(const CreatedTrigger& trigger) {
    check_owns_table(trigger.table);
    Oid types[] = {REGCLASSOID, TEXTOID, NAMEOID, BOOLOID};
    Datum values[] = {
        ObjectIdGetDatum(trigger.table),
        trigger.argument != nullptr ? CStringGetTextDatum(trigger.argument) : Datum{0},
        DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(GetUserId(), false))),
        BoolGetDatum(was_made_now(trigger.table))};
    const char* nulls = trigger.argument != nullptr ? nullptr : " n  ";
    Oid user;
    int context;
    GetUserIdAndSecContext(&user, &context);
    SetUserIdAndSecContext(owner_of(find_own_table("captured")),
                           context | SECURITY_LOCAL_USERID_CHANGE);
    if (SPI_execute_with_args("SELECT outbox_internal.adopt_capture($1, $2, $3, $4)", 4, types,
                              values, nulls, false, 0) != SPI_OK_SELECT)
        elog(ERROR, "cannot write outbox.captured");
    SetUserIdAndSecContext(user, context);
}

static void follow(const CreatedTrigger& trigger) {
    if (!is_ours(trigger.function))
        return;
    // Citus checks this setting after the statement, when it copies a trigger to the shards.
    allow_distributed_triggers();
    if (trigger.function == capture_function("capture_row"))
        adopt(trigger);
}

// ---------------------------------------------------------------------------------------------
// Arguments
// ---------------------------------------------------------------------------------------------

// Arguments end with a zero byte.
static bytea* encoded(const char* argument) {
    const int length = static_cast<int>(strlen(argument)) + 1;
    return reinterpret_cast<bytea*>(cstring_to_text_with_len(argument, length));
}

static void replace_argument(Relation catalog, HeapTuple row, const char* argument) {
    Datum values[Natts_pg_trigger] = {};
    bool nulls[Natts_pg_trigger] = {};
    bool replaced[Natts_pg_trigger] = {};
    values[Anum_pg_trigger_tgargs - 1] = PointerGetDatum(encoded(argument));
    replaced[Anum_pg_trigger_tgargs - 1] = true;
    HeapTuple changed = heap_modify_tuple(row, RelationGetDescr(catalog), values, nulls, replaced);
    CatalogTupleUpdate(catalog, &changed->t_self, changed);
}

static bool has_other_argument(Relation catalog, HeapTuple row, const char* argument) {
    const auto* trigger = reinterpret_cast<Form_pg_trigger>(GETSTRUCT(row));
    if (!is_ours(trigger->tgfoid) || trigger->tgnargs != 1)
        return false;
    bool is_null;
    const Datum arguments =
        heap_getattr(row, Anum_pg_trigger_tgargs, RelationGetDescr(catalog), &is_null);
    return strcmp(VARDATA_ANY(DatumGetByteaPP(arguments)), argument) != 0;
}

// Changes the name as ALTER TRIGGER ... RENAME does.
static void set_argument(Oid table, const char* argument) {
    Relation catalog = table_open(TriggerRelationId, RowExclusiveLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(table));
    SysScanDesc scan = systable_beginscan(catalog, TriggerRelidNameIndexId, true, nullptr, 1, &key);
    bool changed = false;
    for (HeapTuple row; HeapTupleIsValid(row = systable_getnext(scan));)
        if (has_other_argument(catalog, row, argument)) {
            replace_argument(catalog, row, argument);
            changed = true;
        }
    systable_endscan(scan);
    table_close(catalog, RowExclusiveLock);
    if (changed) {
        CommandCounterIncrement();
        CacheInvalidateRelcacheByRelid(table);
    }
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_follow_created_triggers) {
    using namespace outbox;
    if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("must be called as an event trigger")));
    if (OidIsValid(get_extension_oid("citus", true))) {
        SPI_connect();
        ListCell* cell;
        foreach (cell, created_triggers())
            follow(*static_cast<CreatedTrigger*>(lfirst(cell)));
        SPI_finish();
    }
    return PointerGetDatum(nullptr);
}

// ("table" regclass, argument text)
OUTBOX_FUNCTION(outbox_set_capture_argument) {
    outbox::set_argument(PG_GETARG_OID(0), text_to_cstring(PG_GETARG_TEXT_PP(1)));
    PG_RETURN_VOID();
}
