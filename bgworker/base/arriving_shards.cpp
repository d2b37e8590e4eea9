#include "bgworker/base/arriving_shards.hpp"

#include "bgworker/base/query_result.hpp"
#include "extension/base/pg.hpp"
#include "extension/base/table_form.hpp"

namespace outbox {

// Nearly always the table is empty, and looking at it has to cost next to nothing.
bool any_shard_arrives() {
    const Oid table = get_relname_relid("arriving_shard", get_namespace_oid("outbox", true));
    Relation relation = OidIsValid(table) ? try_table_open(table, AccessShareLock) : nullptr;
    if (relation == nullptr)
        return false;
    bool found = false;
    if (RelationGetNumberOfBlocks(relation) > 0) {
        ::Snapshot now = RegisterSnapshot(GetLatestSnapshot());
        TableScanDesc scan = table_beginscan(relation, now, 0, nullptr);
        TupleTableSlot* row = table_slot_create(relation, nullptr);
        found = table_scan_getnextslot(scan, ForwardScanDirection, row);
        ExecDropSingleTupleTableSlot(row);
        table_endscan(scan);
        UnregisterSnapshot(now);
    }
    table_close(relation, AccessShareLock);
    return found;
}

bool shards_hold(const char* destination) {
    NameData name;
    namestrcpy(&name, destination);
    Oid types[] = {NAMEOID};
    Datum values[] = {NameGetDatum(&name)};
    const int code = SPI_execute_with_args("SELECT outbox_internal.shards_hold($1)", 1, types,
                                           values, nullptr, false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not look for shards that have moved: %s", SPI_result_code_string(code));
    check_result("arriving_shard", {BOOLOID});
    return DatumGetBool(required_value("arriving_shard", 0, 1));
}

}  // namespace outbox
