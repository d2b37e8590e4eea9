// Writes outbox.captured on behalf of the owner of a table: the part of outbox.capture()
// (sql/pg_outbox/capture.sql) that SQL cannot do.
#include "extension/base/caller.hpp"
#include "extension/base/owners_rights.hpp"
#include "extension/base/table_form.hpp"
#include "extension/capture/capture.hpp"

namespace outbox {

static void execute(const char* statement, Oid type, Datum argument) {
    SPI_connect();
    if (SPI_execute_with_args(statement, 1, &type, &argument, nullptr, false, 0) < 0)
        elog(ERROR, "cannot write outbox.captured");
    SPI_finish();
}

// Runs a statement as the owner of outbox.captured, as referential integrity does.
static void run_as_owner(const char* statement, Oid type, Datum argument) {
    const Oid owner = owner_of(find_own_table("captured"));
    Oid user;
    int context;
    GetUserIdAndSecContext(&user, &context);
    SetUserIdAndSecContext(owner, context | SECURITY_LOCAL_USERID_CHANGE);
    execute(statement, type, argument);
    SetUserIdAndSecContext(user, context);
}

}  // namespace outbox

// Other code than outbox.capture() may call this. So it checks the arguments again, and takes the
// calling role from the session.
OUTBOX_FUNCTION(outbox_save_captured) {
    using namespace outbox;
    refuse_restricted();
    HeapTupleHeader row = PG_GETARG_HEAPTUPLEHEADER(0);
    bool is_null;
    const Datum table = GetAttributeByNum(row, 1, &is_null);
    check_owns_table(is_null ? InvalidOid : DatumGetObjectId(table));
    execute("SELECT outbox_internal.check_capturable($1)", REGCLASSOID, table);
    run_as_owner("DELETE FROM outbox.captured WHERE relation = $1", REGCLASSOID, table);
    run_as_owner("INSERT INTO outbox.captured SELECT ($1).*", HeapTupleHeaderGetTypeId(row),
                 PG_GETARG_DATUM(0));
    const char* sign = psprintf(
        "UPDATE outbox.captured SET captured_by = %s, "
        "captured_at = clock_timestamp() WHERE relation = $1",
        quote_literal_cstr(GetUserNameFromId(GetUserId(), false)));
    run_as_owner(sign, REGCLASSOID, table);
    PG_RETURN_VOID();
}

OUTBOX_FUNCTION(outbox_forget_captured) {
    using namespace outbox;
    refuse_restricted();
    check_owns_table(PG_GETARG_OID(0));
    run_as_owner("DELETE FROM outbox.captured WHERE relation = $1", REGCLASSOID,
                 PG_GETARG_DATUM(0));
    PG_RETURN_VOID();
}

// Raises an error if the row of outbox.captured does not fit the table.
OUTBOX_FUNCTION(outbox_check_captured) {
    using namespace outbox;
    check_owns_table(PG_GETARG_OID(0));  // before this locks it
    Relation table = table_open(PG_GETARG_OID(0), AccessShareLock);
    find_capture(table);
    table_close(table, NoLock);
    PG_RETURN_VOID();
}
