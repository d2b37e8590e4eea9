// Views that look like the outbox table of an application (sql/pg_outbox/outbox_view.sql): a row
// inserted into one becomes an event of the log.
#include <cstring>
#include <span>
#include <string_view>

#include "extension/base/pg.hpp"
#include "extension/log/log_writer.hpp"
#include "extension/produce/event_input.hpp"
#include "extension/produce/producer.hpp"

namespace outbox {

// ---------------------------------------------------------------------------------------------
// Layouts
// ---------------------------------------------------------------------------------------------

// Meaning of a column of a view.
enum class Use {
    event_id,
    position,  // assigned here
    aggregate_type,
    aggregate_id,
    event_type,
    name,  // event type, topic and, up to its first dot, aggregate type
    version,
    schema_version,
    payload,
    occurred_at,
    null,     // this and the next two are state of the event, which is not delivered yet
    zero,     // 0
    pending,  // 'pending'
};

struct Column {
    Use use;
    Oid type;
    bool may_be_null = false;
};

static constexpr bool optional = true;

struct Layout {
    std::string_view name;
    std::span<const Column> columns;  // in the order of outbox_internal.layout_columns()
};

static constexpr Column seed[] = {
    {Use::event_id, UUIDOID},
    {Use::aggregate_type, TEXTOID},
    {Use::aggregate_id, TEXTOID},
    {Use::event_type, TEXTOID},
    {Use::version, INT8OID},
    {Use::schema_version, INT4OID},
    {Use::payload, BYTEAOID},
    {Use::occurred_at, TIMESTAMPTZOID},
    {Use::null, TIMESTAMPTZOID, optional},
    {Use::zero, INT4OID},
    {Use::null, TIMESTAMPTZOID, optional},
    {Use::null, TEXTOID, optional},
    {Use::null, TIMESTAMPTZOID, optional},
};

static constexpr Column seed_jsonb[] = {
    {Use::event_id, UUIDOID},
    {Use::aggregate_type, TEXTOID},
    {Use::aggregate_id, TEXTOID},
    {Use::event_type, TEXTOID},
    {Use::version, INT8OID},
    {Use::payload, JSONBOID},
    {Use::occurred_at, TIMESTAMPTZOID},
    {Use::null, TIMESTAMPTZOID, optional},
    {Use::zero, INT4OID},
    {Use::null, TIMESTAMPTZOID, optional},
    {Use::null, TEXTOID, optional},
    {Use::null, TIMESTAMPTZOID, optional},
};

static constexpr Column debezium[] = {
    {Use::event_id, UUIDOID},           {Use::aggregate_type, VARCHAROID},
    {Use::aggregate_id, VARCHAROID},    {Use::event_type, VARCHAROID},
    {Use::payload, JSONBOID, optional},
};

static constexpr Column tutorial[] = {
    {Use::event_id, UUIDOID},           {Use::name, VARCHAROID},
    {Use::payload, JSONBOID},           {Use::pending, VARCHAROID},
    {Use::occurred_at, TIMESTAMPTZOID}, {Use::null, TIMESTAMPTZOID, optional},
};

static constexpr Column cqrs[] = {
    {Use::position, INT8OID, optional},
    {Use::aggregate_id, UUIDOID},
    {Use::aggregate_type, VARCHAROID},
    {Use::event_type, VARCHAROID},
    {Use::payload, JSONBOID},
    {Use::occurred_at, TIMESTAMPTZOID},
    {Use::null, TIMESTAMPTZOID, optional},
};

static constexpr Layout layouts[] = {
    {"seed", seed}, {"seed_jsonb", seed_jsonb}, {"debezium", debezium}, {"tutorial", tutorial},
    {"cqrs", cqrs},
};

// Any role that may use the trigger can put it on a view of its own.
static const Layout& layout_of(const TriggerData& trigger) {
    TupleDesc view = RelationGetDescr(trigger.tg_relation);
    for (const Layout& layout : layouts) {
        if (layout.name != trigger.tg_trigger->tgargs[0])
            continue;
        bool fits = view->natts == static_cast<int>(layout.columns.size());
        for (int i = 0; fits && i < view->natts; i++)
            fits = TupleDescAttr(view, i)->atttypid == layout.columns[i].type;
        if (fits)
            return layout;
    }
    ereport(ERROR,
            (errcode(ERRCODE_DATATYPE_MISMATCH),
             errmsg("view \"%s\" does not have the columns of the layout \"%s\"",
                    RelationGetRelationName(trigger.tg_relation), trigger.tg_trigger->tgargs[0]),
             errhint("Make it with outbox.create_outbox_view().")));
}

// ---------------------------------------------------------------------------------------------
// From a row of the view to an event
// ---------------------------------------------------------------------------------------------

[[noreturn]] static void refuse_null(Relation view, int column) {
    const char* name = NameStr(TupleDescAttr(RelationGetDescr(view), column)->attname);
    ereport(
        ERROR,
        (errcode(ERRCODE_NOT_NULL_VIOLATION),
         errmsg("null value in column \"%s\" of view \"%s\"", name, RelationGetRelationName(view)),
         errdetail("The column must have a value, as in the table that the view stands for."),
         errtablecol(view, column + 1)));
}

[[noreturn]] static void refuse_value(Relation view, int column, const char* detail,
                                      const char* hint) {
    const char* name = NameStr(TupleDescAttr(RelationGetDescr(view), column)->attname);
    ereport(ERROR, (errcode(ERRCODE_GENERATED_ALWAYS),
                    errmsg("cannot insert a value into column \"%s\" of view \"%s\"", name,
                           RelationGetRelationName(view)),
                    errdetail("%s", detail), errhint("%s", hint), errtablecol(view, column + 1)));
}

static bool is_pending(Datum value) {
    const text* state = DatumGetTextPP(value);
    return std::string_view(VARDATA_ANY(state), VARSIZE_ANY_EXHDR(state)) == "pending";
}

static void check_untouched(Relation view, int column, const Column& expected, Datum value) {
    if ((expected.use == Use::zero && DatumGetInt32(value) == 0) ||
        (expected.use == Use::pending && is_pending(value)))
        return;
    refuse_value(view, column, "It says what became of the event, which is not delivered yet.",
                 "Leave the column out. An event that need not be delivered need not be inserted.");
}

static text* uuid_as_text(Datum uuid) {
    return cstring_to_text(DatumGetCString(DirectFunctionCall1(uuid_out, uuid)));
}

static text* up_to_first_dot(text* name) {
    const char* start = VARDATA_ANY(name);
    const size_t length = VARSIZE_ANY_EXHDR(name);
    const void* dot = memchr(start, '.', length);
    return dot == nullptr ? name
                          : cstring_to_text_with_len(
                                start, static_cast<int>(static_cast<const char*>(dot) - start));
}

static void take_name(EventInput& input, text* name) {
    input.event_type = name;
    input.aggregate_type = up_to_first_dot(name);
    input.aggregate_id = uuid_as_text(UUIDPGetDatum(input.event_id));
    input.ordering_key = cstring_to_text("");
}

static void take_value(EventInput& input, Relation view, int i, const Column& column, Datum value) {
    switch (column.use) {
        case Use::event_id:
            input.event_id = DatumGetUUIDP(value);
            break;
        case Use::position:
            refuse_value(view, i, "It is the position of the event in the log, given to it here.",
                         "Leave the column out, and get its value with RETURNING.");
        case Use::aggregate_type:
            input.aggregate_type = DatumGetTextPP(value);
            break;
        case Use::aggregate_id:
            input.aggregate_id =
                column.type == UUIDOID ? uuid_as_text(value) : DatumGetTextPP(value);
            break;
        case Use::event_type:
            input.event_type = DatumGetTextPP(value);
            break;
        case Use::name:
            take_name(input, DatumGetTextPP(value));
            break;
        case Use::version:
            input.has_version = true;
            input.version = DatumGetInt64(value);
            break;
        case Use::schema_version:
            input.has_schema_version = true;
            input.schema_version = DatumGetInt32(value);
            break;
        case Use::payload:
            if (column.type == JSONBOID)
                input.json = DatumGetJsonbP(value);
            else
                input.bytes = DatumGetByteaPP(value);
            break;
        case Use::occurred_at:
            input.has_occurred_at = true;
            input.occurred_at = DatumGetTimestampTz(value);
            break;
        case Use::null:
        case Use::zero:
        case Use::pending:
            check_untouched(view, i, column, value);
            break;
    }
}

// Fills the fields of the template in.
static text* expand_topic(const char* topic, const EventInput& input) {
    const struct {
        std::string_view name;
        const text* value;
    } fields[] = {{"{aggregate_type}", input.aggregate_type}, {"{event_type}", input.event_type}};
    StringInfoData result;
    initStringInfo(&result);
    for (std::string_view rest = topic; !rest.empty();) {
        size_t length = 1;
        for (const auto& field : fields)
            if (rest.starts_with(field.name)) {
                length = field.name.size();
                appendBinaryStringInfo(&result, VARDATA_ANY(field.value),
                                       static_cast<int>(VARSIZE_ANY_EXHDR(field.value)));
            }
        if (length == 1)
            appendStringInfoChar(&result, rest.front());
        rest.remove_prefix(length);
    }
    return cstring_to_text_with_len(result.data, result.len);
}

// Writes the row into the log and returns its position.
static int64 write_event(const TriggerData& trigger, const Layout& layout, TupleTableSlot* row) {
    EventInput input{};
    for (int i = 0; i < static_cast<int>(layout.columns.size()); i++) {
        if (!row->tts_isnull[i])
            take_value(input, trigger.tg_relation, i, layout.columns[i], row->tts_values[i]);
        else if (!layout.columns[i].may_be_null)
            refuse_null(trigger.tg_relation, i);
    }
    if (input.bytes != nullptr)
        input.content_type = cstring_to_text(trigger.tg_trigger->tgargs[1]);
    input.topic = expand_topic(trigger.tg_trigger->tgargs[2], input);

    LogWriter writer = open_log();
    TupleTableSlot* event = next_row(writer);
    fill_event(input, event->tts_values, event->tts_isnull);
    check_may_produce(event->tts_values[LogTopic], trigger.tg_relation->rd_rel->relowner);
    write_row(writer);
    close_log(writer);
    return writer.position;
}

static HeapTuple with_position(HeapTuple row, TupleDesc descriptor, const Layout& layout,
                               int64 position) {
    int number = 1;
    for (const Column& column : layout.columns) {
        Datum value = Int64GetDatum(position);
        bool is_null = false;
        if (column.use == Use::position)
            return heap_modify_tuple_by_cols(row, descriptor, 1, &number, &value, &is_null);
        number++;
    }
    return row;
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_insert_event) {
    using namespace outbox;
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("outbox.insert_event() must be called as a trigger")));
    const auto& trigger = *reinterpret_cast<TriggerData*>(fcinfo->context);
    if (!TRIGGER_FIRED_INSTEAD(trigger.tg_event) || !TRIGGER_FIRED_BY_INSERT(trigger.tg_event) ||
        trigger.tg_trigger->tgnargs != 3)
        ereport(ERROR,
                (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                 errmsg("outbox.insert_event() must be fired INSTEAD OF INSERT, with a layout, "
                        "a content type and a topic as arguments")));
    check_may_enqueue();
    const Layout& layout = layout_of(trigger);
    slot_getallattrs(trigger.tg_trigslot);
    const int64 position = write_event(trigger, layout, trigger.tg_trigslot);
    return PointerGetDatum(with_position(trigger.tg_trigtuple,
                                         RelationGetDescr(trigger.tg_relation), layout, position));
}
