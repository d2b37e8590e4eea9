#include "extension/base/owners_rights.hpp"

namespace outbox {

Oid owner_of(Oid table) {
    HeapTuple row = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
    if (!HeapTupleIsValid(row))
        return InvalidOid;
    const Oid owner = reinterpret_cast<Form_pg_class>(GETSTRUCT(row))->relowner;
    ReleaseSysCache(row);
    return owner;
}

Oid weaker_of(Oid one, Oid other) {
    if (has_privs_of_role(other, one))
        return one;
    return has_privs_of_role(one, other) ? other : InvalidOid;
}

Oid check_owns_table(Oid table) {
    const Oid owner = owner_of(table);
    if (!OidIsValid(owner))
        ereport(ERROR,
                (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("table %u does not exist", table)));
    if (!has_privs_of_role(GetUserId(), owner))
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("must be owner of table %s", get_rel_name(table))));
    return owner;
}

// Returns the values of the first row as texts; nullptr if there is no row.
static ArrayType* first_row() {
    if (SPI_tuptable == nullptr || SPI_processed == 0)
        return nullptr;
    TupleDesc form = SPI_tuptable->tupdesc;
    auto* values = static_cast<Datum*>(palloc(sizeof(Datum) * form->natts));
    auto* nulls = static_cast<bool*>(palloc(form->natts));
    for (int i = 0; i < form->natts; i++) {
        const char* value = SPI_getvalue(SPI_tuptable->vals[0], form, i + 1);
        nulls[i] = value == nullptr;
        values[i] = nulls[i] ? Datum{0} : CStringGetTextDatum(value);
    }
    int lower_bound = 1;
    return construct_md_array(values, nulls, 1, &form->natts, &lower_bound, TEXTOID, -1, false,
                              TYPALIGN_INT);
}

}  // namespace outbox

// (table regclass, statement text)
OUTBOX_FUNCTION(outbox_run_as_owner) {
    using namespace outbox;
    const Oid owner = check_owns_table(PG_GETARG_OID(0));
    const char* statement = text_to_cstring(PG_GETARG_TEXT_PP(1));
    SPI_connect();
    const OwnersRights rights(owner);
    const int code = SPI_execute(statement, false, 0);
    if (code < 0)
        elog(ERROR, "could not run a statement as an owner: %s", SPI_result_code_string(code));
    const ArrayType* row = first_row();
    rights.give_back();
    const Datum result = row != nullptr ? SPI_datumTransfer(PointerGetDatum(row), false, -1) : 0;
    SPI_finish();
    if (row == nullptr)
        PG_RETURN_NULL();
    return result;
}
