#include "bgworker/base/query_result.hpp"

#include "extension/base/table_form.hpp"

namespace outbox {

void check_result(const char* source, std::initializer_list<Oid> types) {
    if (SPI_tuptable == nullptr)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("\"%s\" of extension \"pg_outbox\" was altered", source),
                        errdetail("It returns nothing.")));
    check_attributes(source, SPI_tuptable->tupdesc, {types.begin(), types.size()});
}

void check_result_row(const char* source, std::initializer_list<Oid> types) {
    check_result(source, types);
    if (SPI_processed == 0)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("\"%s\" of extension \"pg_outbox\" was altered", source),
                        errdetail("It returns no row.")));
}

Datum result_value(uint64 row, int column, bool* is_null) {
    return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, is_null);
}

Datum required_value(const char* source, uint64 row, int column) {
    bool is_null;
    const Datum value = result_value(row, column, &is_null);
    if (is_null)
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("null value in column \"%s\" of \"%s\" of extension \"pg_outbox\"",
                               SPI_fname(SPI_tuptable->tupdesc, column), source)));
    return value;
}

}  // namespace outbox
