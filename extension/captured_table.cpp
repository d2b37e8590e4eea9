// What outbox.capture() (sql/pg_outbox/capture.sql) cannot do in SQL: to write outbox.captured on
// behalf of the owner of a table.
#include "capture.hpp"
#include "owners_rights.hpp"

namespace outbox {

// Runs a statement as the owner of outbox.captured, as referential integrity does.
static void run_as_owner(const char* statement, Oid type, Datum argument) {
    const Oid captured = get_relname_relid("captured", get_namespace_oid("outbox", false));
    Oid user;
    int context;
    GetUserIdAndSecContext(&user, &context);
    SetUserIdAndSecContext(owner_of(captured), context | SECURITY_LOCAL_USERID_CHANGE);
    SPI_connect();
    if (SPI_execute_with_args(statement, 1, &type, &argument, nullptr, false, 0) < 0)
        elog(ERROR, "cannot write outbox.captured");
    SPI_finish();
    SetUserIdAndSecContext(user, context);
}

// A temporary table is gone without anybody being told, and its row would be left.
static void check_kind(Oid table) {
    const char kind = get_rel_relkind(table);
    if ((kind != RELKIND_RELATION && kind != RELKIND_PARTITIONED_TABLE) ||
        get_rel_persistence(table) == RELPERSISTENCE_TEMP)
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" cannot be captured", get_rel_name(table))));
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_save_captured) {
    using namespace outbox;
    HeapTupleHeader row = PG_GETARG_HEAPTUPLEHEADER(0);
    bool is_null;
    const Datum table = GetAttributeByNum(row, 1, &is_null);
    check_owns_table(is_null ? InvalidOid : DatumGetObjectId(table));
    check_kind(DatumGetObjectId(table));
    run_as_owner("DELETE FROM outbox.captured WHERE relation = $1", REGCLASSOID, table);
    run_as_owner("INSERT INTO outbox.captured SELECT ($1).*", HeapTupleHeaderGetTypeId(row),
                 PG_GETARG_DATUM(0));
    PG_RETURN_VOID();
}

OUTBOX_FUNCTION(outbox_forget_captured) {
    using namespace outbox;
    check_owns_table(PG_GETARG_OID(0));
    run_as_owner("DELETE FROM outbox.captured WHERE relation = $1", REGCLASSOID,
                 PG_GETARG_DATUM(0));
    PG_RETURN_VOID();
}

// Raises an error if what outbox.captured says does not fit the table.
OUTBOX_FUNCTION(outbox_check_captured) {
    using namespace outbox;
    check_owns_table(PG_GETARG_OID(0));  // before it is locked
    Relation table = table_open(PG_GETARG_OID(0), AccessShareLock);
    find_capture(table);
    table_close(table, NoLock);
    PG_RETURN_VOID();
}
