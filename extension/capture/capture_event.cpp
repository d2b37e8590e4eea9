#include "extension/capture/capture_event.hpp"

#include "extension/base/settings.hpp"
#include "extension/capture/removed_rows.hpp"
#include "extension/log/statement_writer.hpp"
#include "extension/produce/event_headers.hpp"
#include "extension/produce/event_input.hpp"
#include "extension/produce/producer.hpp"

namespace outbox {

static Datum value_of(TupleTableSlot* row, const CaptureColumn& column) {
    return row->tts_values[column.json.number - 1];
}

static bool is_null(TupleTableSlot* row, const CaptureColumn& column) {
    return row->tts_isnull[column.json.number - 1];
}

// ---------------------------------------------------------------------------------------------
// Keys, headers and versions
// ---------------------------------------------------------------------------------------------

// The value is not null. Times do not depend on the session's time zone, because keys must be the
// same for all sessions.
static char* text_of(const CaptureColumn& column, Datum value) {
    if (column.json.form != JsonForm::date_time)
        return OutputFunctionCall(column.output, value);
    static const int utc = 0;
    return JsonEncodeDateTime(static_cast<char*>(palloc(MAXDATELEN + 1)), value, column.json.type,
                              column.json.type == TIMESTAMPTZOID ? &utc : nullptr);
}

static text* text_of_one(const CaptureColumn& column, TupleTableSlot* row) {
    return cstring_to_text(is_null(row, column) ? "" : text_of(column, value_of(row, column)));
}

// Joins several values by colons, and escapes colons within a value.
static text* text_of_all(const Capture& capture, const ColumnList& list, TupleTableSlot* row) {
    if (list.count == 1)
        return text_of_one(capture.columns[list.items[0]], row);
    StringInfoData joined;
    initStringInfo(&joined);
    for (int i = 0; i < list.count; i++) {
        const CaptureColumn& column = capture.columns[list.items[i]];
        if (i > 0)
            appendStringInfoChar(&joined, ':');
        if (is_null(row, column))
            continue;
        for (const char* c = text_of(column, value_of(row, column)); *c != '\0'; c++) {
            if (*c == ':' || *c == '\\')
                appendStringInfoChar(&joined, '\\');
            appendStringInfoChar(&joined, *c);
        }
    }
    return cstring_to_text_with_len(joined.data, joined.len);
}

static JsonbValue header_value(const CaptureColumn& column, Datum value) {
    JsonbValue result;
    switch (column.json.form) {
        case JsonForm::boolean:
            result.type = jbvBool;
            result.val.boolean = DatumGetBool(value);
            return result;
        case JsonForm::int2:
        case JsonForm::int4:
        case JsonForm::int8: {
            const char* number = OutputFunctionCall(column.output, value);
            result.type = jbvNumeric;
            result.val.numeric = DatumGetNumeric(
                DirectFunctionCall3(numeric_in, CStringGetDatum(number),
                                    ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
            return result;
        }
        default:
            result.type = jbvString;
            result.val.string.val = text_of(column, value);
            result.val.string.len = static_cast<int>(strlen(result.val.string.val));
            return result;
    }
}

// Columns that are null add no header.
static Jsonb* headers_of(const Capture& capture, TupleTableSlot* row, bool snapshot) {
    if (capture.header_columns.count == 0 && !snapshot)
        return capture.common_headers;
    JsonbParseState* state = nullptr;
    pushJsonbValue(&state, WJB_BEGIN_OBJECT, nullptr);
    for (int i = 0; i < capture.header_columns.count; i++) {
        const CaptureColumn& column = capture.columns[capture.header_columns.items[i]];
        const text* name = capture.header_names[i];
        if (!is_null(row, column))
            push_header(state, VARDATA_ANY(name), static_cast<int>(VARSIZE_ANY_EXHDR(name)),
                        header_value(column, value_of(row, column)));
    }
    push_schema_header(capture, state);
    if (snapshot) {
        JsonbValue yes;
        yes.type = jbvBool;
        yes.val.boolean = true;
        push_header(state, "snapshot", 8, yes);
    }
    return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, nullptr));
}

static int64 version_of(const Capture& capture, TupleTableSlot* row) {
    const CaptureColumn& column = capture.columns[capture.version];
    const Datum value = value_of(row, column);
    switch (column.json.form) {
        case JsonForm::int2:
            return DatumGetInt16(value);
        case JsonForm::int4:
            return DatumGetInt32(value);
        default:
            return DatumGetInt64(value);
    }
}

// ---------------------------------------------------------------------------------------------
// Events
// ---------------------------------------------------------------------------------------------

struct RowEvent {
    text* type;
    TupleTableSlot* row;
    StringInfoData payload;
    int64 version;  // if the capture has a version column
    bool snapshot;
    int32 only_to;
};

static RowEvent begin_event(const Capture& capture, text* type, TupleTableSlot* row) {
    slot_getsomeattrs(row, capture.last_column);
    RowEvent event{};
    event.type = type;
    event.row = row;
    if (capture.version >= 0)
        event.version = version_of(capture, row);
    initStringInfo(&event.payload);
    appendStringInfoSpaces(&event.payload, VARHDRSZ);
    return event;
}

static text* finish_payload(StringInfo payload) {
    SET_VARSIZE(payload->data, payload->len);
    return reinterpret_cast<text*>(payload->data);
}

static void write_input(LogWriter& writer, const Capture& capture, const EventInput& input,
                        int32 only_to) {
    TupleTableSlot* slot = next_row(writer);
    fill_event(input, slot->tts_values, slot->tts_isnull);
    if (only_to != 0) {
        slot->tts_values[LogOnlyTo] = Int32GetDatum(only_to);
        slot->tts_isnull[LogOnlyTo] = false;
    }
    check_may_produce(slot->tts_values[LogTopic], capture.owner, Produces::by_capture);
    writer.position_is_version = true;
    write_row(writer);
}

static void write_event(LogWriter& writer, const Capture& capture, RowEvent& event) {
    EventInput input{};
    input.aggregate_type = capture.aggregate_type;
    input.aggregate_id = text_of_all(capture, capture.aggregate_id, event.row);
    input.event_type = event.type;
    input.json_text = finish_payload(&event.payload);
    input.has_version = capture.version >= 0;
    input.version = event.version;
    input.topic = capture.topic;
    if (capture.topic_column >= 0 && !is_null(event.row, capture.columns[capture.topic_column]))
        input.topic = text_of_one(capture.columns[capture.topic_column], event.row);
    if (capture.has_ordering_key)
        input.ordering_key = text_of_all(capture, capture.ordering_key, event.row);
    input.headers = headers_of(capture, event.row, event.snapshot);
    input.no_trace = event.snapshot;
    write_input(writer, capture, input, event.only_to);
}

static void write_change(const Capture& capture, RowEvent& event) {
    if (LogWriter* shared = writer_of_statement(); shared != nullptr) {
        write_event(*shared, capture, event);
        return;
    }
    LogWriter writer = open_log();
    write_event(writer, capture, event);
    close_log(writer);
}

// ---------------------------------------------------------------------------------------------
// Payloads
// ---------------------------------------------------------------------------------------------

// Adds members for the columns that `selects` accepts.
template <class Selects>
static void append_object(StringInfo to, const Capture& capture, TupleTableSlot* row,
                          Selects&& selects) {
    const int began = begin_object(to);
    for (int i = 0; i < capture.column_count; i++) {
        const CaptureColumn& column = capture.columns[i];
        if (selects(i))
            append_member(to, column.json, value_of(row, column), is_null(row, column));
    }
    end_object(to, began);
}

static void append_row(StringInfo to, const Capture& capture, TupleTableSlot* row) {
    append_object(to, capture, row, [&](int i) { return capture.columns[i].in_payload; });
}

static void append_key(StringInfo to, const Capture& capture, TupleTableSlot* row) {
    append_object(to, capture, row, [&](int i) { return capture.columns[i].in_key; });
}

// {"title": {"old": ..., "new": ...}}
static void append_differences(StringInfo to, const Capture& capture, TupleTableSlot* old_row,
                               TupleTableSlot* new_row, const bool* changed) {
    const int began = begin_object(to);
    for (int i = 0; i < capture.column_count; i++) {
        const CaptureColumn& column = capture.columns[i];
        if (!changed[i])
            continue;
        appendBinaryStringInfo(to, column.json.label, column.json.label_length);
        appendStringInfoString(to, "{\"old\":");
        append_value(to, column.json, value_of(old_row, column), is_null(old_row, column));
        appendStringInfoString(to, ",\"new\":");
        append_value(to, column.json, value_of(new_row, column), is_null(new_row, column));
        appendStringInfoChar(to, '}');
    }
    end_object(to, began);
}

static void append_update(StringInfo to, const Capture& capture, TupleTableSlot* old_row,
                          TupleTableSlot* new_row, const bool* changed) {
    const auto is_changed = [&](int i) { return changed[i]; };
    if (capture.on_update == CaptureUpdate::full) {
        append_row(to, capture, new_row);
    } else if (capture.on_update == CaptureUpdate::changed && !capture.old_values) {
        append_object(to, capture, new_row, [&](int i) {
            return changed[i] || capture.columns[i].in_key || capture.columns[i].is_version;
        });
    } else {
        appendStringInfoString(to, "{\"key\":");
        append_key(to, capture, new_row);
        if (capture.on_update == CaptureUpdate::diff) {
            appendStringInfoString(to, ",\"changed\":");
            append_differences(to, capture, old_row, new_row, changed);
        } else {
            appendStringInfoString(to, ",\"old\":");
            append_object(to, capture, old_row, is_changed);
            appendStringInfoString(to, ",\"new\":");
            append_object(to, capture, new_row, is_changed);
        }
        appendStringInfoChar(to, '}');
    }
}

// The version is that of the event, which is newer than that of the row.
static void append_deleted(StringInfo to, const Capture& capture, TupleTableSlot* row,
                           int64 version) {
    const int began = begin_object(to);
    for (int i = 0; i < capture.column_count; i++) {
        const CaptureColumn& column = capture.columns[i];
        if (column.is_version) {
            appendBinaryStringInfo(to, column.json.label, column.json.label_length);
            appendStringInfo(to, INT64_FORMAT, version);
        } else if (column.in_key || (capture.old_row && column.in_payload)) {
            append_member(to, column.json, value_of(row, column), is_null(row, column));
        }
    }
    end_object(to, began);
}

// ---------------------------------------------------------------------------------------------
// Changes of rows
// ---------------------------------------------------------------------------------------------

// An unchanged value that is stored out of line keeps its place, so its bytes need not be compared.
static bool same_place(Datum a, Datum b) {
    const auto* one = DatumGetPointer(a);
    const auto* other = DatumGetPointer(b);
    return VARATT_IS_EXTERNAL_ONDISK(one) && VARATT_IS_EXTERNAL_ONDISK(other) &&
           memcmp(one, other, VARSIZE_EXTERNAL(one)) == 0;
}

// The first byte of a short value is its length, unless the value is stored out of line.
static bool same_short(Datum a, Datum b) {
    const char* one = DatumGetPointer(a);
    const char* other = DatumGetPointer(b);
    return VARATT_IS_SHORT(one) && !VARATT_IS_EXTERNAL(one) && *one == *other &&
           memcmp(one, other, VARSIZE_SHORT(one)) == 0;
}

// Most values are of the first two kinds, and a call for each column of each row would show.
static bool is_changed(const CaptureColumn& column, TupleTableSlot* old_row,
                       TupleTableSlot* new_row) {
    if (is_null(old_row, column) || is_null(new_row, column))
        return is_null(old_row, column) != is_null(new_row, column);
    const Datum before = value_of(old_row, column);
    const Datum after = value_of(new_row, column);
    if (column.json.by_value)
        return before != after;
    if (column.json.length == -1 && (same_short(before, after) || same_place(before, after)))
        return false;
    return !datum_image_eq(before, after, false, column.json.length);
}

// Consumers that apply only newer versions pass over the event of a change that does not raise the
// version. Warns once a statement.
static void check_version_rises(const Capture& capture, TupleTableSlot* row, int64 before,
                                int64 after) {
    static TimestampTz warned_at = 0;
    static Oid warned_table = InvalidOid;
    if (after > before)
        return;
    const bool is_error = settings::on_stale_version == settings::OnStaleVersionError;
    if (!is_error && warned_at == GetCurrentStatementStartTimestamp() &&
        warned_table == capture.table)
        return;
    warned_at = GetCurrentStatementStartTimestamp();
    warned_table = capture.table;
    const int number = capture.columns[capture.version].json.number;
    ereport(is_error ? ERROR : WARNING,
            (errcode(ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION),
             errmsg("version column \"%s\" of table \"%s\" did not rise",
                    NameStr(TupleDescAttr(row->tts_tupleDescriptor, number - 1)->attname),
                    get_rel_name(capture.table)),
             errdetail("It was " INT64_FORMAT " and is " INT64_FORMAT
                       ". Consumers that apply only newer versions pass over the event.",
                       before, after),
             errhint("Raise it with each change, or capture the table without a version.")));
}

static uint64 hash_of_key(const Capture& capture, TupleTableSlot* row) {
    StringInfoData key;
    initStringInfo(&key);
    slot_getsomeattrs(row, capture.last_column);
    append_key(&key, capture, row);
    const uint64 hash =
        hash_bytes_extended(reinterpret_cast<unsigned char*>(key.data), key.len, capture.table);
    pfree(key.data);
    return hash;
}

static void write_deleted(const Capture& capture, TupleTableSlot* row, int64 least_version) {
    RowEvent event = begin_event(capture, capture.delete_type, row);
    if (capture.version >= 0 && event.version < PG_INT64_MAX)
        event.version++;
    event.version = Max(event.version, least_version);
    append_deleted(&event.payload, capture, row, event.version);
    if (capture.version >= 0)
        note_removed(hash_of_key(capture, row), event.version);
    write_change(capture, event);
}

// The version must be higher than that of the row's delete, too. It is not if a program moves rows, as
// pg_partman does, which deletes them and inserts them again.
static void check_not_removed(const Capture& capture, TupleTableSlot* row, int64 version) {
    int64 before;
    if (any_removed() && take_removed(hash_of_key(capture, row), before))
        check_version_rises(capture, row, before, version);
}

void capture_insert(const Capture& capture, TupleTableSlot* row) {
    RowEvent event = begin_event(capture, capture.insert_type, row);
    if (capture.version >= 0)
        check_not_removed(capture, row, event.version);
    append_row(&event.payload, capture, row);
    write_change(capture, event);
}

void capture_delete(const Capture& capture, TupleTableSlot* row) {
    write_deleted(capture, row, PG_INT64_MIN);
}

static void write_updated(const Capture& capture, TupleTableSlot* old_row, TupleTableSlot* new_row,
                          const bool* changed) {
    RowEvent event = begin_event(capture, capture.update_type, new_row);
    append_update(&event.payload, capture, old_row, new_row, changed);
    write_change(capture, event);
}

void capture_update(const Capture& capture, TupleTableSlot* old_row, TupleTableSlot* new_row) {
    const bool was_captured = is_captured(capture, old_row);
    const bool is_captured_now = is_captured(capture, new_row);
    if (!was_captured && is_captured_now)
        return capture_insert(capture, new_row);
    if (!was_captured)
        return;
    slot_getsomeattrs(old_row, capture.last_column);
    slot_getsomeattrs(new_row, capture.last_column);
    if (!is_captured_now)
        return write_deleted(capture, old_row,
                             capture.version >= 0 ? version_of(capture, new_row) : PG_INT64_MIN);

    auto* changed = static_cast<bool*>(palloc0(capture.column_count));
    bool any = false;
    bool key = false;
    for (int i = 0; i < capture.column_count; i++) {
        const CaptureColumn& column = capture.columns[i];
        changed[i] = column.in_payload && is_changed(column, old_row, new_row);
        any |= changed[i];
        key |= changed[i] && column.in_key;
    }
    if (key) {
        capture_delete(capture, old_row);
        capture_insert(capture, new_row);
    } else if (any) {
        if (capture.version >= 0)
            check_version_rises(capture, new_row, version_of(capture, old_row),
                                version_of(capture, new_row));
        write_updated(capture, old_row, new_row, changed);
    }
}

// The event is about the whole table, whose name is the aggregate id.
void capture_truncate(const Capture& capture, Relation truncated) {
    const auto name_of = [](Oid table) {
        return quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)),
                                          get_rel_name(table));
    };
    const char* table = name_of(capture.table);
    const char* emptied = name_of(RelationGetRelid(truncated));
    StringInfoData payload;
    initStringInfo(&payload);
    appendStringInfoSpaces(&payload, VARHDRSZ);
    appendStringInfoString(&payload, "{\"table\":");
    append_json(&payload, table, static_cast<int>(strlen(table)));
    appendStringInfoString(&payload, ",\"truncated\":");
    append_json(&payload, emptied, static_cast<int>(strlen(emptied)));
    appendStringInfoChar(&payload, '}');

    EventInput input{};
    input.aggregate_type = capture.aggregate_type;
    input.aggregate_id = cstring_to_text(table);
    input.event_type = capture.truncate_type;
    input.headers = capture.common_headers;
    input.json_text = finish_payload(&payload);
    input.topic = capture.topic;
    LogWriter writer = open_log();
    write_input(writer, capture, input, 0);
    close_log(writer);
}

bool write_snapshot(LogWriter& writer, const Capture& capture, TupleTableSlot* row, int32 only_to) {
    if (!is_captured(capture, row))
        return false;
    MemoryContext outer = MemoryContextSwitchTo(writer.memory);
    RowEvent event = begin_event(capture, capture.snapshot_type, row);
    event.snapshot = true;
    event.only_to = only_to;
    append_row(&event.payload, capture, row);
    write_event(writer, capture, event);
    MemoryContextSwitchTo(outer);
    return true;
}

}  // namespace outbox
