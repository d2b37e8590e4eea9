#include "extension/log/log.hpp"

#include "extension/base/table_form.hpp"
#include "extension/base/version.hpp"

namespace outbox {

static LogRelations relations;
static bool relations_valid = false;
static bool checked[segment_count];  // the segment has the columns of the log

static void invalidate(Datum, Oid relation) {
    if (relation == InvalidOid || relation == relations.ring || relation == relations.positions)
        relations_valid = false;
    for (int i = 0; i < segment_count; i++)
        if (relation == InvalidOid || relation == relations.segments[i])
            relations_valid = checked[i] = false;
}

static constexpr int is_gone = -1;

// Reads the ring as it is now, whatever the current transaction may see. It has a row per segment.
// A relay that finds it dropped leaves quietly; a producer gets an error that says to try again.
static int read_current_segment(Oid table, bool may_be_gone) {
    int current = 0;
    Relation ring = may_be_gone ? try_table_open(table, AccessShareLock)
                                : open_own_table(table, AccessShareLock);
    if (ring == nullptr)
        return is_gone;
    static constexpr Oid types[] = {INT4OID, BOOLOID, TIMESTAMPTZOID};
    check_columns(ring, types, true);
    ::Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(ring, snapshot, 0, nullptr);
    TupleTableSlot* row = table_slot_create(ring, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, row)) {
        slot_getallattrs(row);
        const int number = DatumGetInt32(row->tts_values[RingNumber]);
        if (DatumGetBool(row->tts_values[RingCurrent]) && number >= 0 && number < segment_count)
            current = number;
    }
    ExecDropSingleTupleTableSlot(row);
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    table_close(ring, AccessShareLock);
    return current;
}

static bool look_up(LogRelations& found) {
    const Oid schema = get_namespace_oid("outbox", true);
    VersionProblem problem;
    if (!OidIsValid(schema) || find_version_problem("pg_outbox", problem))
        return false;
    for (int i = 0; i < segment_count; i++) {
        found.segments[i] = get_relname_relid(psprintf("event_%d", i), schema);
        if (!OidIsValid(found.segments[i]))
            return false;
    }
    found.ring = get_relname_relid("ring", schema);
    found.positions = get_relname_relid("event_position", schema);
    return OidIsValid(found.ring) && OidIsValid(found.positions);
}

static const LogRelations* find(bool may_be_gone) {
    static bool registered = false;
    if (!registered) {
        CacheRegisterRelcacheCallback(invalidate, 0);
        registered = true;
    }
    for (int turn = 0; turn < max_turns && !relations_valid; turn++) {
        LogRelations found{};
        if (!look_up(found))
            return nullptr;
        relations = found;
        memset(checked, 0, sizeof checked);
        relations_valid = true;
        relations.current = read_current_segment(found.ring, may_be_gone);
        if (relations.current == is_gone) {
            relations_valid = false;
            return nullptr;
        }
    }
    return &relations;
}

const LogRelations* find_log_relations() {
    return find(true);
}

static constexpr Oid log_types[] = {INT8OID, XID8OID,  TIMESTAMPTZOID, UUIDOID, INT8OID, INT4OID,
                                    UUIDOID, TEXTOID,  TEXTOID,        TEXTOID, TEXTOID, TEXTOID,
                                    TEXTOID, JSONBOID, BYTEAOID,       INT4OID};
static_assert(lengthof(log_types) == LogColumns);

void check_segment(int number, Relation segment) {
    if (checked[number])
        return;
    check_columns(segment, log_types);
    checked[number] = true;
}

void check_event_columns(const char* name, TupleDesc form) {
    check_attributes(name, form, log_types, true);
}

const char* segment_name(Oid segment) {
    static constexpr const char* names[] = {"event_0", "event_1", "event_2", "event_3"};
    static_assert(lengthof(names) == segment_count);
    for (int i = 0; i < segment_count; i++)
        if (relations.segments[i] == segment)
            return names[i];
    return nullptr;
}

bool is_order_index(Relation index) {
    return index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indisvalid &&
           index->rd_index->indnkeyatts == 2 && index->rd_index->indkey.values[0] == LogXid + 1 &&
           index->rd_index->indkey.values[1] == LogPosition + 1 &&
           heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, nullptr);
}

Relation try_open_segment(int number) {
    const LogRelations* log = find_log_relations();
    Relation segment =
        log != nullptr ? try_table_open(log->segments[number], AccessShareLock) : nullptr;
    if (segment != nullptr)
        check_segment(number, segment);
    return segment;
}

const LogRelations& log_relations() {
    const LogRelations* found = find(false);
    VersionProblem problem;
    if (found == nullptr && find_version_problem("pg_outbox", problem))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("%s", problem.message), errhint("%s", problem.hint)));
    if (found == nullptr)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                        errmsg("extension \"pg_outbox\" is not installed in this database"),
                        errhint("Run CREATE EXTENSION pg_outbox.")));
    return *found;
}

}  // namespace outbox
