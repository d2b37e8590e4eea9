// Writes rows as JSON straight into a buffer, column by column, in the form that to_jsonb() gives.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Form in which values of a type are written.
enum class JsonForm {
    boolean,
    int2,
    int4,
    int8,
    number,     // by its output function; as a string if that is not a JSON number, such as NaN
    text,       // a varlena of characters
    date_time,  // in ISO 8601
    json,
    jsonb,
    output,  // by its output function, as a string
    other,   // by to_json()
};

struct JsonColumn {
    AttrNumber number;
    int16 length;
    bool by_value;
    JsonForm form;
    Oid type;           // the base type of a domain
    const char* label;  // `,"name":`
    int label_length;
    FmgrInfo* function;  // output function, or to_json()
};

// Allocates the column's state in the current context, which has to outlive the result.
JsonColumn make_json_column(Form_pg_attribute attribute);

// Appends the text as a JSON string. Before version 18 the server's escape_json() needs a NUL
// behind the text.
void append_json(StringInfo to, const char* text, int length);
void append_value(StringInfo to, const JsonColumn& column, Datum value, bool is_null);

// Appends some columns of a row as an object. append_member() is called between these two.
int begin_object(StringInfo to);
void append_member(StringInfo to, const JsonColumn& column, Datum value, bool is_null);
void end_object(StringInfo to, int began);

}  // namespace outbox
