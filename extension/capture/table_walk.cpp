#include "extension/capture/table_walk.hpp"

namespace outbox {

// ---------------------------------------------------------------------------------------------
// The index
// ---------------------------------------------------------------------------------------------

static bool is_ordered_key(Relation index, Relation table) {
    const Form_pg_index form = index->rd_index;
    if (!form->indisunique || !form->indisvalid || index->rd_rel->relam != BTREE_AM_OID ||
        !heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, nullptr))
        return false;
    for (int i = 0; i < form->indnkeyatts; i++) {
        const AttrNumber number = form->indkey.values[i];
        if (number <= 0 || !TupleDescAttr(RelationGetDescr(table), number - 1)->attnotnull ||
            (index->rd_indoption[i] & INDOPTION_DESC) != 0)
            return false;
    }
    return true;
}

static bool is_on(const TableKey& key, Relation table, ArrayType* columns) {
    Datum* names;
    int count;
    deconstruct_array(columns, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &names, nullptr, &count);
    if (count != key.columns)
        return false;
    for (int i = 0; i < count; i++)
        if (get_attnum(RelationGetRelid(table), NameStr(*DatumGetName(names[i]))) !=
            key.attributes[i])
            return false;
    return true;
}

static TableKey key_of_index(Relation index) {
    TableKey key{};
    key.index = index;
    key.columns = index->rd_index->indnkeyatts;
    for (int i = 0; i < key.columns; i++)
        key.attributes[i] = index->rd_index->indkey.values[i];
    return key;
}

TableKey open_key(Relation table, ArrayType* columns) {
    TableKey best{};
    List* indexes = RelationGetIndexList(table);
    ListCell* cell;
    foreach (cell, indexes) {
        Relation index = index_open(lfirst_oid(cell), AccessShareLock);
        const TableKey key = key_of_index(index);
        const bool fits = is_ordered_key(index, table) &&
                          (columns == nullptr || is_on(key, table, columns)) &&
                          (best.index == nullptr || index->rd_index->indisprimary);
        if (fits && best.index != nullptr)
            close_key(best);
        if (fits)
            best = key;
        else
            index_close(index, AccessShareLock);
    }
    if (best.index != nullptr)
        return best;
    if (columns != nullptr)
        ereport(
            ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("the unique index by which table \"%s\" was scanned does not exist any more",
                    RelationGetRelationName(table)),
             errhint("Create it again, or start a new backfill.")));
    ereport(
        ERROR,
        (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
         errmsg("table \"%s\" has no unique index to scan it by", RelationGetRelationName(table)),
         errhint("Create a primary key, or a unique index on columns that are NOT NULL.")));
}

void close_key(TableKey& key) {
    index_close(key.index, AccessShareLock);
    key.index = nullptr;
}

// ---------------------------------------------------------------------------------------------
// Keys as texts
// ---------------------------------------------------------------------------------------------

Datum key_columns(const TableKey& key, Relation table) {
    Datum names[INDEX_MAX_KEYS];
    for (int i = 0; i < key.columns; i++)
        names[i] =
            NameGetDatum(&TupleDescAttr(RelationGetDescr(table), key.attributes[i] - 1)->attname);
    return PointerGetDatum(
        construct_array(names, key.columns, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR));
}

Datum key_of_row(const TableKey& key, TupleTableSlot* row) {
    Datum texts[INDEX_MAX_KEYS];
    for (int i = 0; i < key.columns; i++) {
        const Form_pg_attribute column =
            TupleDescAttr(row->tts_tupleDescriptor, key.attributes[i] - 1);
        bool is_null;
        const Datum value = slot_getattr(row, key.attributes[i], &is_null);
        Oid output;
        bool is_varlena;
        getTypeOutputInfo(column->atttypid, &output, &is_varlena);
        texts[i] = CStringGetTextDatum(OidOutputFunctionCall(output, value));
    }
    return PointerGetDatum(construct_array(texts, key.columns, TEXTOID, -1, false, TYPALIGN_INT));
}

static void values_of_key(const TableKey& key, Relation table, ArrayType* key_texts,
                          Datum* values) {
    Datum* texts;
    bool* nulls;
    int count;
    deconstruct_array(key_texts, TEXTOID, -1, false, TYPALIGN_INT, &texts, &nulls, &count);
    if (count != key.columns)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("a key of table \"%s\" has %d values, not %d",
                               RelationGetRelationName(table), key.columns, count)));
    for (int i = 0; i < count; i++) {
        if (nulls[i])
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("a key of table \"%s\" has a null value",
                                   RelationGetRelationName(table))));
        const Form_pg_attribute column =
            TupleDescAttr(RelationGetDescr(table), key.attributes[i] - 1);
        Oid input, parameter;
        getTypeInputInfo(column->atttypid, &input, &parameter);
        values[i] = OidInputFunctionCall(input, TextDatumGetCString(texts[i]), parameter,
                                         column->atttypmod);
    }
}

// ---------------------------------------------------------------------------------------------
// Scans
// ---------------------------------------------------------------------------------------------

// Fills in a comparison of one column, as the index makes it.
static void init_scan_key(ScanKey entry, const TableKey& key, int column, StrategyNumber strategy,
                          Datum value) {
    const Oid type = key.index->rd_opcintype[column];
    const Oid compare = get_opfamily_member(key.index->rd_opfamily[column], type, type, strategy);
    ScanKeyEntryInitialize(entry, 0, column + 1, strategy, type, key.index->rd_indcollation[column],
                           get_opcode(compare), value);
}

// Fills in one column of a row comparison.
static void init_row_member(ScanKey entry, const TableKey& key, int column, Datum value) {
    const Oid type = key.index->rd_opcintype[column];
    const int flags = SK_ROW_MEMBER | (column == key.columns - 1 ? SK_ROW_END : 0);
    ScanKeyEntryInitialize(
        entry, flags, column + 1, BTGreaterStrategyNumber, type, key.index->rd_indcollation[column],
        get_opfamily_proc(key.index->rd_opfamily[column], type, type, BTORDER_PROC), value);
}

static void init_row_key(ScanKey entry, const TableKey& key, const Datum* values) {
    ScanKey members = static_cast<ScanKey>(palloc0(sizeof(ScanKeyData) * key.columns));
    for (int i = 0; i < key.columns; i++)
        init_row_member(&members[i], key, i, values[i]);
    memset(entry, 0, sizeof *entry);
    entry->sk_flags = SK_ROW_HEADER;
    entry->sk_attno = members[0].sk_attno;
    entry->sk_strategy = BTGreaterStrategyNumber;
    entry->sk_argument = PointerGetDatum(members);
}

IndexScanDesc begin_walk(Relation table, const TableKey& key, ::Snapshot snapshot,
                         ArrayType* after) {
    Datum values[INDEX_MAX_KEYS];
    ScanKeyData start;
    if (after != nullptr)
        values_of_key(key, table, after, values);
    if (after != nullptr && key.columns == 1)
        init_scan_key(&start, key, 0, BTGreaterStrategyNumber, values[0]);
    else if (after != nullptr)
        init_row_key(&start, key, values);
    const int keys = after != nullptr ? 1 : 0;
    IndexScanDesc scan = compat::begin_index_scan(table, key.index, snapshot, keys);
    index_rescan(scan, &start, keys, nullptr, 0);
    return scan;
}

IndexScanDesc begin_look_up(Relation table, const TableKey& key, ::Snapshot snapshot,
                            ArrayType* values_as_texts) {
    Datum values[INDEX_MAX_KEYS];
    ScanKeyData keys[INDEX_MAX_KEYS];
    values_of_key(key, table, values_as_texts, values);
    for (int i = 0; i < key.columns; i++)
        init_scan_key(&keys[i], key, i, BTEqualStrategyNumber, values[i]);
    IndexScanDesc scan = compat::begin_index_scan(table, key.index, snapshot, key.columns);
    index_rescan(scan, keys, key.columns, nullptr, 0);
    return scan;
}

}  // namespace outbox
