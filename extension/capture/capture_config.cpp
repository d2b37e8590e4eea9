#include "extension/capture/capture_config.hpp"

#include <initializer_list>

#include "extension/base/owners_rights.hpp"
#include "extension/base/table_form.hpp"
#include "extension/produce/event_headers.hpp"
#include "extension/produce/event_input.hpp"
#include "extension/produce/producer.hpp"

namespace outbox {

// Columns of outbox.captured, in the order of sql/pg_outbox/captured.sql (zero-based).
enum CapturedColumn {
    CapturedRelation,
    CapturedAggregateType,
    CapturedAggregateId,
    CapturedRowKey,
    CapturedVersion,
    CapturedTopic,
    CapturedTopicColumn,
    CapturedOrderingKey,
    CapturedHeaders,
    CapturedColumns,
    CapturedExcluded,
    CapturedOnUpdate,
    CapturedOldValues,
    CapturedOnDelete,
    CapturedConditional,
    CapturedInsertType,
    CapturedUpdateType,
    CapturedDeleteType,
    CapturedTruncateType,
    CapturedSnapshotType,
    CapturedOnTruncate,
    CapturedFire,
    CapturedKnownColumns,
    CapturedKnownMembers,
    CapturedBy,
};

// A row of outbox.captured, and the relation whose rows are captured by it.
struct Source {
    const Datum* values;
    const bool* nulls;
    Relation relation;
};

// ---------------------------------------------------------------------------------------------
// Columns
// ---------------------------------------------------------------------------------------------

static const char* names_of_columns(TupleDesc form) {
    StringInfoData names;
    initStringInfo(&names);
    for (int i = 0; i < form->natts; i++)
        if (!TupleDescAttr(form, i)->attisdropped)
            appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "",
                             NameStr(TupleDescAttr(form, i)->attname));
    return names.data;
}

static Form_pg_attribute attribute_called(const Source& source, const char* name) {
    TupleDesc form = RelationGetDescr(source.relation);
    for (int i = 0; i < form->natts; i++) {
        Form_pg_attribute attribute = TupleDescAttr(form, i);
        if (!attribute->attisdropped && strcmp(NameStr(attribute->attname), name) == 0)
            return attribute;
    }
    ereport(ERROR,
            (errcode(ERRCODE_UNDEFINED_COLUMN),
             errmsg("column \"%s\", which outbox.capture() names, does not exist in table \"%s\"",
                    name, RelationGetRelationName(source.relation)),
             errhint("Its columns are: %s.", names_of_columns(form))));
}

static FmgrInfo* output_function(Oid type) {
    auto* function = static_cast<FmgrInfo*>(palloc0(sizeof(FmgrInfo)));
    Oid output;
    bool is_varlena;
    getTypeOutputInfo(type, &output, &is_varlena);
    fmgr_info(output, function);
    return function;
}

// Returns the place of a column among the used ones, and adds it if it is new.
static int use_column(Capture& capture, const Source& source, const char* name) {
    Form_pg_attribute attribute = attribute_called(source, name);
    for (int i = 0; i < capture.column_count; i++)
        if (capture.columns[i].json.number == attribute->attnum)
            return i;
    if (compat::is_virtual(attribute))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("column \"%s\" cannot be captured", name),
                        errdetail("Virtual generated columns have no value when triggers run.")));
    CaptureColumn& column = capture.columns[capture.column_count];
    column.json = make_json_column(attribute);
    column.output = output_function(column.json.type);
    capture.last_column = Max(capture.last_column, attribute->attnum);
    return capture.column_count++;
}

static ColumnList use_columns(Capture& capture, const Source& source, CapturedColumn list) {
    Datum* names;
    int count;
    deconstruct_array(DatumGetArrayTypeP(source.values[list]), NAMEOID, NAMEDATALEN, false,
                      TYPALIGN_CHAR, &names, nullptr, &count);
    ColumnList result = {static_cast<int*>(palloc(sizeof(int) * (count + 1))), count};
    for (int i = 0; i < count; i++)
        result.items[i] = use_column(capture, source, NameStr(*DatumGetName(names[i])));
    return result;
}

static int use_column_if_any(Capture& capture, const Source& source, CapturedColumn name) {
    return source.nulls[name]
               ? -1
               : use_column(capture, source, NameStr(*DatumGetName(source.values[name])));
}

// Columns of a key must not be null, because they identify a row.
static void mark_key(Capture& capture, const Source& source, const ColumnList& list) {
    for (int i = 0; i < list.count; i++) {
        CaptureColumn& column = capture.columns[list.items[i]];
        Form_pg_attribute attribute =
            TupleDescAttr(RelationGetDescr(source.relation), column.json.number - 1);
        if (!attribute->attnotnull)
            ereport(ERROR, (errcode(ERRCODE_INVALID_TABLE_DEFINITION),
                            errmsg("column \"%s\" of a captured key may be null",
                                   NameStr(attribute->attname)),
                            errhint("Declare it NOT NULL, or capture the table with another "
                                    "aggregate_id.")));
        column.in_key = true;
        column.in_payload = true;
    }
}

static void mark_version(Capture& capture, const Source& source) {
    if (capture.version < 0)
        return;
    CaptureColumn& column = capture.columns[capture.version];
    Form_pg_attribute attribute =
        TupleDescAttr(RelationGetDescr(source.relation), column.json.number - 1);
    if (column.json.form != JsonForm::int2 && column.json.form != JsonForm::int4 &&
        column.json.form != JsonForm::int8)
        ereport(ERROR,
                (errcode(ERRCODE_DATATYPE_MISMATCH),
                 errmsg("version column \"%s\" is of type %s", NameStr(attribute->attname),
                        format_type_be(attribute->atttypid)),
                 errhint("A version is a smallint, integer or bigint that every change raises.")));
    if (!attribute->attnotnull)
        ereport(ERROR, (errcode(ERRCODE_INVALID_TABLE_DEFINITION),
                        errmsg("version column \"%s\" may be null", NameStr(attribute->attname)),
                        errhint("Declare it NOT NULL.")));
    column.is_version = true;
    column.in_payload = true;
}

static bool contains(ArrayType* names, const char* name) {
    Datum* items;
    int count;
    deconstruct_array(names, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &items, nullptr, &count);
    for (int i = 0; i < count; i++)
        if (strcmp(NameStr(*DatumGetName(items[i])), name) == 0)
            return true;
    return false;
}

// Reads a list of the columns that are captured, or of those that are not.
static void mark_payload(Capture& capture, const Source& source) {
    if (!source.nulls[CapturedColumns]) {
        const ColumnList list = use_columns(capture, source, CapturedColumns);
        for (int i = 0; i < list.count; i++)
            capture.columns[list.items[i]].in_payload = true;
        return;
    }
    ArrayType* excluded = DatumGetArrayTypeP(source.values[CapturedExcluded]);
    TupleDesc form = RelationGetDescr(source.relation);
    for (int i = 0; i < form->natts; i++) {
        Form_pg_attribute attribute = TupleDescAttr(form, i);
        const char* name = NameStr(attribute->attname);
        if (!attribute->attisdropped && !compat::is_virtual(attribute) && !contains(excluded, name))
            capture.columns[use_column(capture, source, name)].in_payload = true;
    }
}

static void use_headers(Capture& capture, const Source& source) {
    if (source.nulls[CapturedHeaders])
        return;
    Jsonb* headers = DatumGetJsonbP(source.values[CapturedHeaders]);
    const int count = static_cast<int>(JB_ROOT_COUNT(headers));
    capture.header_names = static_cast<text**>(palloc(sizeof(text*) * (count + 1)));
    capture.header_columns = {static_cast<int*>(palloc(sizeof(int) * (count + 1))), 0};

    JsonbIterator* iterator = JsonbIteratorInit(&headers->root);
    JsonbValue value;
    JsonbIteratorToken token;
    int& n = capture.header_columns.count;
    while ((token = JsonbIteratorNext(&iterator, &value, true)) != WJB_DONE) {
        if (token == WJB_KEY) {
            capture.header_names[n] =
                cstring_to_text_with_len(value.val.string.val, value.val.string.len);
        } else if (token == WJB_VALUE) {
            if (value.type != jbvString)
                ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                                errmsg("headers of a capture must be names of columns"),
                                errhint("Write for example '{\"tenant\": \"tenant_id\"}'.")));
            const char* name = pnstrdup(value.val.string.val, value.val.string.len);
            capture.header_columns.items[n++] = use_column(capture, source, name);
        }
    }
}

static constexpr char schema_header[] = "tableschema";

// Tells tables of one name in several schemas apart. Most tables are in `public`, and their events
// need no header for that.
static void use_schema(Capture& capture) {
    const Oid schema = get_rel_namespace(capture.table);
    if (schema == get_namespace_oid("public", true))
        return;
    for (int i = 0; i < capture.header_columns.count; i++)
        if (VARSIZE_ANY_EXHDR(capture.header_names[i]) == sizeof schema_header - 1 &&
            memcmp(VARDATA_ANY(capture.header_names[i]), schema_header, sizeof schema_header - 1) ==
                0)
            return;
    capture.schema = get_namespace_name(schema);
    if (capture.schema == nullptr || capture.header_columns.count > 0)
        return;
    JsonbParseState* state = nullptr;
    pushJsonbValue(&state, WJB_BEGIN_OBJECT, nullptr);
    push_schema_header(capture, state);
    capture.common_headers = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, nullptr));
}

void push_schema_header(const Capture& capture, JsonbParseState*& state) {
    if (capture.schema == nullptr)
        return;
    JsonbValue name;
    name.type = jbvString;
    name.val.string.val = const_cast<char*>(capture.schema);
    name.val.string.len = static_cast<int>(strlen(capture.schema));
    push_header(state, schema_header, sizeof schema_header - 1, name);
}

static int by_number(const void* a, const void* b) {
    return static_cast<const CaptureColumn*>(a)->json.number -
           static_cast<const CaptureColumn*>(b)->json.number;
}

// All columns are collected and sorted into the order of the table first, because later code knows
// them by their places.
static void use_all_columns(Capture& capture, const Source& source) {
    TupleDesc form = RelationGetDescr(source.relation);
    capture.columns =
        static_cast<CaptureColumn*>(palloc0(sizeof(CaptureColumn) * (form->natts + 1)));
    capture.column_count = 0;
    const auto use = [&](CapturedColumn list) {
        if (!source.nulls[list])
            use_columns(capture, source, list);
    };
    mark_payload(capture, source);
    use(CapturedAggregateId);
    use(CapturedRowKey);
    use(CapturedOrderingKey);
    use_column_if_any(capture, source, CapturedVersion);
    use_column_if_any(capture, source, CapturedTopicColumn);
    use_headers(capture, source);
    pg_qsort(capture.columns, capture.column_count, sizeof(CaptureColumn), by_number);

    capture.aggregate_id = use_columns(capture, source, CapturedAggregateId);
    mark_key(capture, source, capture.aggregate_id);
    mark_key(capture, source, use_columns(capture, source, CapturedRowKey));
    capture.has_ordering_key = !source.nulls[CapturedOrderingKey];
    if (capture.has_ordering_key)
        capture.ordering_key = use_columns(capture, source, CapturedOrderingKey);
    capture.topic_column = use_column_if_any(capture, source, CapturedTopicColumn);
    capture.version = use_column_if_any(capture, source, CapturedVersion);
    mark_version(capture, source);
    use_headers(capture, source);
    use_schema(capture);
}

// ---------------------------------------------------------------------------------------------
// The rest
// ---------------------------------------------------------------------------------------------

static text* text_of(const Source& source, CapturedColumn column) {
    return DatumGetTextPCopy(source.values[column]);
}

static bool says(const Source& source, CapturedColumn column, const char* word) {
    return strcmp(TextDatumGetCString(source.values[column]), word) == 0;
}

Oid capture_function(const char* name) {
    return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
                           PointerGetDatum(buildoidvector(nullptr, 0)),
                           ObjectIdGetDatum(get_namespace_oid("outbox", false)));
}

// The condition is code of the role that captured the table, also after a change of owner.
static Oid common_role(const Capture& capture, const Source& source) {
    const Oid owners = weaker_of(capture.owner, source.relation->rd_rel->relowner);
    if (!OidIsValid(owners) || !DatumGetBool(source.values[CapturedConditional]))
        return owners;
    return weaker_of(owners, get_role_oid(NameStr(*DatumGetName(source.values[CapturedBy])), true));
}

void check_owners(const Capture& capture, Relation table) {
    const bool one_owner = OidIsValid(weaker_of(capture.owner, table->rd_rel->relowner));
    if (!OidIsValid(capture.code_runs_as) && one_owner)
        ereport(ERROR,
                (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                 errmsg("the condition of the capture of table \"%s\" does not belong to its owner",
                        get_rel_name(capture.table)),
                 errdetail("Another role has called outbox.capture(), and its functions would run "
                           "with the rights of the owner."),
                 errhint("Call outbox.capture() again, with replace => true.")));
    if (!OidIsValid(capture.code_runs_as))
        ereport(ERROR,
                (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                 errmsg("table \"%s\" does not belong to the owner of table \"%s\"",
                        RelationGetRelationName(table), get_rel_name(capture.table)),
                 errdetail("It is captured as a part of that table, and functions of one of the "
                           "owners would run with the rights of the other."),
                 errhint("ALTER TABLE ... OWNER TO gives both to one role.")));
}

Oid role_of_code(const Capture& capture) {
    return capture.code_runs_as;
}

// Checks once, at capture, what outbox.enqueue() would refuse in each event.
static void check_form(const Capture& capture) {
    EventInput input{};
    input.aggregate_type = capture.aggregate_type;
    input.aggregate_id = cstring_to_text("any");
    input.topic = capture.topic;
    JsonbParseState* state = nullptr;
    pushJsonbValue(&state, WJB_BEGIN_OBJECT, nullptr);
    for (int i = 0; i < capture.header_columns.count; i++) {
        JsonbValue name;
        name.type = jbvString;
        name.val.string.val = VARDATA(capture.header_names[i]);
        name.val.string.len = VARSIZE(capture.header_names[i]) - VARHDRSZ;
        JsonbValue nothing;
        nothing.type = jbvNull;
        pushJsonbValue(&state, WJB_KEY, &name);
        pushJsonbValue(&state, WJB_VALUE, &nothing);
    }
    push_schema_header(capture, state);
    input.headers = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, nullptr));

    Datum values[LogColumns];
    bool nulls[LogColumns];
    for (text* type : {capture.insert_type, capture.update_type, capture.delete_type,
                       capture.truncate_type, capture.snapshot_type}) {
        input.event_type = type;
        fill_event(input, values, nulls);
    }
    check_may_produce(values[LogTopic], capture.owner, Produces::by_capture);
}

static Capture* make_capture(const Source& source) {
    auto* made = static_cast<Capture*>(palloc0(sizeof(Capture)));
    Capture& capture = *made;
    capture.memory = CurrentMemoryContext;
    capture.table = DatumGetObjectId(source.values[CapturedRelation]);
    capture.owner = owner_of(capture.table);
    capture.code_runs_as = common_role(capture, source);
    capture.aggregate_type = text_of(source, CapturedAggregateType);
    capture.topic = text_of(source, CapturedTopic);
    capture.insert_type = text_of(source, CapturedInsertType);
    capture.update_type = text_of(source, CapturedUpdateType);
    capture.delete_type = text_of(source, CapturedDeleteType);
    capture.truncate_type = text_of(source, CapturedTruncateType);
    capture.snapshot_type = text_of(source, CapturedSnapshotType);
    capture.on_update = says(source, CapturedOnUpdate, "full")      ? CaptureUpdate::full
                        : says(source, CapturedOnUpdate, "changed") ? CaptureUpdate::changed
                                                                    : CaptureUpdate::diff;
    capture.old_values = DatumGetBool(source.values[CapturedOldValues]);
    capture.old_row = says(source, CapturedOnDelete, "old");
    use_all_columns(capture, source);
    check_form(capture);
    if (DatumGetBool(source.values[CapturedConditional]))
        read_condition(capture, source.relation);
    return made;
}

// ---------------------------------------------------------------------------------------------
// outbox.captured
// ---------------------------------------------------------------------------------------------

static Oid captured_table = InvalidOid;

// Adds the parents at the end of the list.
static List* add_parents(List* relations, Oid relation) {
    Relation catalog = table_open(InheritsRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(relation));
    SysScanDesc scan =
        systable_beginscan(catalog, InheritsRelidSeqnoIndexId, true, nullptr, 1, &key);
    for (HeapTuple row; HeapTupleIsValid(row = systable_getnext(scan));)
        relations =
            lappend_oid(relations, reinterpret_cast<Form_pg_inherits>(GETSTRUCT(row))->inhparent);
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);
    return relations;
}

// Checks what the functions below rely on. The owner of the extension can alter its tables.
static void check_captured_table(Relation table) {
    static constexpr Oid types[] = {
        REGCLASSOID,  TEXTOID,      NAMEARRAYOID, NAMEARRAYOID, NAMEOID, TEXTOID, NAMEOID,
        NAMEARRAYOID, JSONBOID,     NAMEARRAYOID, NAMEARRAYOID, TEXTOID, BOOLOID, TEXTOID,
        BOOLOID,      TEXTOID,      TEXTOID,      TEXTOID,      TEXTOID, TEXTOID, TEXTOID,
        TEXTOID,      NAMEARRAYOID, OIDARRAYOID,  NAMEOID,
    };
    static_assert(lengthof(types) == CapturedBy + 1);
    check_columns(table, types, true);
}

static void check_captured_row(Relation table, TupleTableSlot* row) {
    for (const CapturedColumn column :
         {CapturedAggregateType, CapturedAggregateId, CapturedRowKey, CapturedTopic,
          CapturedExcluded, CapturedOnUpdate, CapturedOldValues, CapturedOnDelete,
          CapturedConditional, CapturedInsertType, CapturedUpdateType, CapturedDeleteType,
          CapturedTruncateType, CapturedSnapshotType, CapturedBy})
        check_value(table, row, column);
}

static bool find_row(TableScanDesc scan, Oid relation, TupleTableSlot* row) {
    table_rescan(scan, nullptr);
    while (table_scan_getnextslot(scan, ForwardScanDirection, row)) {
        slot_getallattrs(row);
        if (DatumGetObjectId(row->tts_values[CapturedRelation]) == relation)
            return true;
    }
    return false;
}

// Reads outbox.captured as it is now, whatever the current transaction may see.
static Capture* read_capture(Relation relation) {
    captured_table = find_own_table("captured");
    Relation table = open_own_table(captured_table, AccessShareLock);
    check_captured_table(table);
    ::Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table, snapshot, 0, nullptr);
    TupleTableSlot* row = table_slot_create(table, nullptr);
    Capture* capture = nullptr;
    List* relations = list_make1_oid(RelationGetRelid(relation));
    for (int i = 0; i < list_length(relations) && capture == nullptr; i++) {
        const Oid candidate = list_nth_oid(relations, i);
        if (find_row(scan, candidate, row)) {
            check_captured_row(table, row);
            capture = make_capture({row->tts_values, row->tts_isnull, relation});
        } else {
            relations = add_parents(relations, candidate);
        }
    }
    ExecDropSingleTupleTableSlot(row);
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    table_close(table, AccessShareLock);
    return capture;
}

// ---------------------------------------------------------------------------------------------
// The session's cache
// ---------------------------------------------------------------------------------------------

struct CacheEntry {
    Oid relation;
    bool valid;
    bool has_parts;  // captures of its partitions and children depend on it
    Capture* capture;
};

static HTAB* cache = nullptr;
static bool cache_valid = true;  // if false, no entry is valid

static void invalidate_relation(Datum, Oid relation) {
    if (relation == InvalidOid || relation == captured_table) {
        cache_valid = false;
        return;
    }
    auto* entry = static_cast<CacheEntry*>(hash_search(cache, &relation, HASH_FIND, nullptr));
    if (entry == nullptr)
        return;
    entry->valid = false;
    if (entry->has_parts)
        cache_valid = false;
}

// A condition may contain the inlined body of a function, and schemas can be renamed.
static void invalidate_all_captures(Datum, int, uint32) {
    cache_valid = false;
}

static void make_cache() {
    HASHCTL control{};
    control.keysize = sizeof(Oid);
    control.entrysize = sizeof(CacheEntry);
    cache = hash_create("outbox captures", 64, &control, HASH_ELEM | HASH_BLOBS);
    CacheRegisterRelcacheCallback(invalidate_relation, 0);
    for (const auto catalog : {PROCOID, NAMESPACEOID})
        CacheRegisterSyscacheCallback(catalog, invalidate_all_captures, 0);
}

static void invalidate_all() {
    HASH_SEQ_STATUS status;
    hash_seq_init(&status, cache);
    while (auto* entry = static_cast<CacheEntry*>(hash_seq_search(&status)))
        entry->valid = false;
    cache_valid = true;
}

// A caller may still use the entry in this transaction.
static void retire(CacheEntry& entry) {
    if (entry.capture != nullptr)
        MemoryContextSetParent(entry.capture->memory, TopTransactionContext);
    entry.capture = nullptr;
}

static CacheEntry& entry_of(Oid relation) {
    bool found;
    auto* entry = static_cast<CacheEntry*>(hash_search(cache, &relation, HASH_ENTER, &found));
    if (!found) {
        entry->valid = false;
        entry->has_parts = false;
        entry->capture = nullptr;
    }
    return *entry;
}

static void build(CacheEntry& entry, Relation relation) {
    MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "outbox capture", ALLOCSET_SMALL_SIZES);
    MemoryContext outer = MemoryContextSwitchTo(memory);
    Capture* capture = read_capture(relation);
    MemoryContextSwitchTo(outer);
    retire(entry);
    if (capture == nullptr) {
        MemoryContextDelete(memory);
        return;
    }
    MemoryContextSetParent(memory, CacheMemoryContext);
    entry.capture = capture;
    if (capture->table != entry.relation)
        entry_of(capture->table).has_parts = true;
}

const Capture* find_capture(Relation table) {
    if (cache == nullptr)
        make_cache();
    CacheEntry& entry = entry_of(RelationGetRelid(table));
    // Reading may invalidate the entry each time.
    for (int turn = 0; turn < max_turns; turn++) {
        if (!cache_valid)
            invalidate_all();
        if (entry.valid && entry.capture != nullptr)
            return entry.capture;
        retire(entry);
        entry.valid = true;
        build(entry, table);
        if (entry.capture == nullptr)
            return nullptr;
    }
    return entry.capture;
}

}  // namespace outbox
