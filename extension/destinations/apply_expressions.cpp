// The expressions of destinations for SQL: for relays outside the server, and outbox.event_status().
#include "extension/destinations/expression_role.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// Only foreign servers have expressions: outbox.default_destination has no options.
static Expressions expressions_of(const char* destination) {
    const ForeignServer* server = GetForeignServerByName(destination, true);
    if (server == nullptr)
        return {destination, InvalidOid, {}};
    return {destination, server->owner, expression_texts(server->options)};
}

static void replace(HeapTuple& event, TupleDesc form, const EventChange& change) {
    if (!change.has_new_payload)
        return;
    Datum values[LogColumns] = {};
    bool nulls[LogColumns] = {};
    bool replaced[LogColumns] = {};
    replaced[LogPayload] = true;
    nulls[LogPayload] = change.new_payload_is_null;
    if (!change.new_payload_is_null)
        values[LogPayload] = PointerGetDatum(cstring_to_text_with_len(
            change.new_payload.data, static_cast<int>(change.new_payload.size)));
    replaced[LogContentType] = change.new_payload_is_json;
    values[LogContentType] = CStringGetTextDatum("application/json");
    event = heap_modify_tuple(event, form, values, nulls, replaced);
}

static void put_event(ReturnSetInfo* result, HeapTuple event, TupleDesc form, const Bytes& fault) {
    Datum values[] = {
        heap_copy_tuple_as_datum(event, form),
        PointerGetDatum(cstring_to_text_with_len(fault.data, static_cast<int>(fault.size)))};
    bool nulls[] = {false, fault.size == 0};
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static Bytes in_server_encoding(const Bytes& text) {
    char* converted =
        pg_any_to_server(const_cast<char*>(text.data), static_cast<int>(text.size), PG_UTF8);
    return converted == text.data ? text : Bytes{converted, strlen(converted)};
}

static const char* text_of(const char* utf8) {
    const Bytes text = in_server_encoding({utf8, strlen(utf8)});
    return pnstrdup(text.data, text.size);
}

static void apply(Expressions& expressions, ArrayType* events, ReturnSetInfo* result) {
    Datum* values;
    bool* nulls;
    int count;
    deconstruct_array(events, ARR_ELEMTYPE(events), -1, false, TYPALIGN_DOUBLE, &values, &nulls,
                      &count);
    TupleDesc form = lookup_rowtype_tupdesc_copy(ARR_ELEMTYPE(events), -1);
    check_event_columns("event", form);
    TupleTableSlot* slot = MakeSingleTupleTableSlot(form, &TTSOpsHeapTuple);
    MemoryContext memory =
        AllocSetContextCreate(CurrentMemoryContext, "outbox event", ALLOCSET_DEFAULT_SIZES);
    MemoryContext outer = MemoryContextSwitchTo(memory);
    if (const char* trouble = expressions.begin())
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_OBJECT_DEFINITION), errmsg("%s", text_of(trouble))));
    for (int i = 0; i < count; i++) {
        if (nulls[i])
            continue;
        HeapTupleHeader row = DatumGetHeapTupleHeader(values[i]);
        HeapTupleData data{};
        data.t_len = HeapTupleHeaderGetDatumLength(row);
        data.t_data = row;
        ItemPointerSetInvalid(&data.t_self);
        HeapTuple event = &data;
        ExecStoreHeapTuple(event, slot, false);
        EventChange change;
        if (expressions.evaluate(slot, change)) {
            replace(event, form, change);
            put_event(result, event, form, in_server_encoding(change.fault));
        }
        ExecClearTuple(slot);
        MemoryContextReset(memory);
    }
    expressions.end();
    MemoryContextSwitchTo(outer);
    MemoryContextDelete(memory);
}

}  // namespace outbox

// (destination name, events outbox.event[])
OUTBOX_FUNCTION(outbox_apply_expressions) {
    using namespace outbox;
    InitMaterializedSRF(fcinfo, 0);
    Expressions expressions = expressions_of(NameStr(*PG_GETARG_NAME(0)));
    apply(expressions, PG_GETARG_ARRAYTYPE_P(1),
          reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo));
    return 0;
}

// (destination name)
OUTBOX_FUNCTION(outbox_expression_trouble) {
    using namespace outbox;
    Expressions expressions = expressions_of(NameStr(*PG_GETARG_NAME(0)));
    const char* trouble = expressions.begin();
    expressions.end();
    if (trouble == nullptr)
        PG_RETURN_NULL();
    PG_RETURN_TEXT_P(cstring_to_text(text_of(trouble)));
}

// (destination name, role name)
OUTBOX_FUNCTION(outbox_may_evaluate) {
    const ForeignServer* server = GetForeignServerByName(NameStr(*PG_GETARG_NAME(0)), true);
    const Oid role = get_role_oid(NameStr(*PG_GETARG_NAME(1)), false);
    PG_RETURN_BOOL(server == nullptr || outbox::may_run_for(role, server->owner));
}
