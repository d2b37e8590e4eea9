#include "extension/capture/json_row.hpp"

namespace outbox {

void append_json(StringInfo to, const char* text, int length) {
    static constexpr char hex[] = "0123456789abcdef";
    appendStringInfoCharMacro(to, '"');
    int written = 0;
    for (int i = 0; i < length; i++) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (c >= ' ' && c != '"' && c != '\\')
            continue;
        appendBinaryStringInfo(to, text + written, i - written);
        written = i + 1;
        appendStringInfoCharMacro(to, '\\');
        switch (c) {
            case '"':
            case '\\':
                appendStringInfoCharMacro(to, static_cast<char>(c));
                break;
            case '\b':
                appendStringInfoCharMacro(to, 'b');
                break;
            case '\f':
                appendStringInfoCharMacro(to, 'f');
                break;
            case '\n':
                appendStringInfoCharMacro(to, 'n');
                break;
            case '\r':
                appendStringInfoCharMacro(to, 'r');
                break;
            case '\t':
                appendStringInfoCharMacro(to, 't');
                break;
            default: {
                const char code[] = {'u', '0', '0', hex[c >> 4], hex[c & 15]};
                appendBinaryStringInfo(to, code, sizeof code);
            }
        }
    }
    appendBinaryStringInfo(to, text + written, length - written);
    appendStringInfoCharMacro(to, '"');
}

// ---------------------------------------------------------------------------------------------
// Columns
// ---------------------------------------------------------------------------------------------

// Returns whether to_json() would do more than call the output function.
static bool is_structured(Oid type) {
    if (OidIsValid(get_element_type(type)) || type_is_rowtype(type))
        return true;
    Oid cast;
    return type >= FirstNormalObjectId &&
           find_coercion_pathway(JSONOID, type, COERCION_EXPLICIT, &cast) == COERCION_PATH_FUNC;
}

static JsonForm form_of(Oid type) {
    switch (type) {
        case BOOLOID:
            return JsonForm::boolean;
        case INT2OID:
            return JsonForm::int2;
        case INT4OID:
            return JsonForm::int4;
        case INT8OID:
            return JsonForm::int8;
        case FLOAT4OID:
        case FLOAT8OID:
        case NUMERICOID:
            return JsonForm::number;
        case TEXTOID:
        case VARCHAROID:
        case BPCHAROID:
            return JsonForm::text;
        case DATEOID:
        case TIMESTAMPOID:
        case TIMESTAMPTZOID:
            return JsonForm::date_time;
        case JSONOID:
            return JsonForm::json;
        case JSONBOID:
            return JsonForm::jsonb;
        default:
            return is_structured(type) ? JsonForm::other : JsonForm::output;
    }
}

// to_json() reads the type of its argument from the call.
static void set_argument_type(FmgrInfo* function, Oid type) {
    Const* argument = makeNullConst(type, -1, InvalidOid);
    FuncExpr* call = makeFuncExpr(F_TO_JSON, JSONOID, list_make1(argument), InvalidOid, InvalidOid,
                                  COERCE_EXPLICIT_CALL);
    fmgr_info_set_expr(reinterpret_cast<Node*>(call), function);
}

JsonColumn make_json_column(Form_pg_attribute attribute) {
    JsonColumn column{};
    column.number = attribute->attnum;
    column.length = attribute->attlen;
    column.by_value = attribute->attbyval;
    column.type = getBaseType(attribute->atttypid);
    column.form = form_of(column.type);
    column.function = static_cast<FmgrInfo*>(palloc0(sizeof(FmgrInfo)));
    if (column.form == JsonForm::other) {
        fmgr_info(F_TO_JSON, column.function);
        set_argument_type(column.function, column.type);
    } else {
        Oid output;
        bool is_varlena;
        getTypeOutputInfo(column.type, &output, &is_varlena);
        fmgr_info(output, column.function);
    }

    StringInfoData label;
    initStringInfo(&label);
    appendStringInfoChar(&label, ',');
    const char* name = NameStr(attribute->attname);
    append_json(&label, name, static_cast<int>(strlen(name)));
    appendStringInfoChar(&label, ':');
    column.label = label.data;
    column.label_length = label.len;
    return column;
}

// ---------------------------------------------------------------------------------------------
// Values
// ---------------------------------------------------------------------------------------------

static void append_integer(StringInfo to, int64 value) {
    enlargeStringInfo(to, MAXINT8LEN + 1);
    to->len += pg_lltoa(value, to->data + to->len);
}

static bool is_number(const char* text) {
    return isdigit(static_cast<unsigned char>(text[text[0] == '-' ? 1 : 0]));
}

static void append_varlena(StringInfo to, Datum value, bool quoted) {
    struct varlena* characters = PG_DETOAST_DATUM_PACKED(value);
    if (quoted)
        append_json(to, VARDATA_ANY(characters), VARSIZE_ANY_EXHDR(characters));
    else
        appendBinaryStringInfo(to, VARDATA_ANY(characters), VARSIZE_ANY_EXHDR(characters));
}

void append_value(StringInfo to, const JsonColumn& column, Datum value, bool is_null) {
    if (is_null) {
        appendBinaryStringInfo(to, "null", 4);
        return;
    }
    switch (column.form) {
        case JsonForm::boolean:
            appendStringInfoString(to, DatumGetBool(value) ? "true" : "false");
            break;
        case JsonForm::int2:
            append_integer(to, DatumGetInt16(value));
            break;
        case JsonForm::int4:
            append_integer(to, DatumGetInt32(value));
            break;
        case JsonForm::int8:
            append_integer(to, DatumGetInt64(value));
            break;
        case JsonForm::text:
            append_varlena(to, value, true);
            break;
        case JsonForm::json:
            append_varlena(to, value, false);
            break;
        case JsonForm::jsonb: {
            Jsonb* json = DatumGetJsonbP(value);
            JsonbToCString(to, &json->root, VARSIZE(json));
            break;
        }
        case JsonForm::date_time: {
            char text[MAXDATELEN + 1];
            JsonEncodeDateTime(text, value, column.type, nullptr);
            appendStringInfoCharMacro(to, '"');
            appendStringInfoString(to, text);
            appendStringInfoCharMacro(to, '"');
            break;
        }
        case JsonForm::number:
        case JsonForm::output: {
            const char* text = OutputFunctionCall(column.function, value);
            if (column.form == JsonForm::number && is_number(text))
                appendStringInfoString(to, text);
            else
                append_json(to, text, static_cast<int>(strlen(text)));
            break;
        }
        case JsonForm::other:
            append_varlena(to, FunctionCall1(column.function, value), false);
            break;
    }
}

int begin_object(StringInfo to) {
    return to->len;
}

void append_member(StringInfo to, const JsonColumn& column, Datum value, bool is_null) {
    appendBinaryStringInfo(to, column.label, column.label_length);
    append_value(to, column, value, is_null);
}

// The opening brace replaces the comma before the first member.
void end_object(StringInfo to, int began) {
    if (to->len == began)
        appendStringInfoCharMacro(to, '{');
    else
        to->data[began] = '{';
    appendStringInfoCharMacro(to, '}');
}

}  // namespace outbox
