// Rows as JSON, column by column, as to_jsonb() would give them, straight into a buffer.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// How values of a type are written.
enum class JsonForm {
    boolean,
    int2,
    int4,
    int8,
    number,     // by its output function; a string where that gives no number, as with NaN
    text,       // a varlena of characters
    date_time,  // in the form of ISO 8601
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
    Oid type;           // what a domain is based on
    const char* label;  // `,"name":`
    int label_length;
    FmgrInfo* function;  // output function, or to_json()
};

// What belongs to the column is allocated in the current context, which has to outlive it.
JsonColumn make_json_column(Form_pg_attribute attribute);

// As a JSON string. The server's escape_json() needs a NUL behind the text before version 18.
void append_json(StringInfo to, const char* text, int length);
void append_value(StringInfo to, const JsonColumn& column, Datum value, bool is_null);

// Some columns of a row as an object. Between the two calls come append_member()s.
int begin_object(StringInfo to);
void append_member(StringInfo to, const JsonColumn& column, Datum value, bool is_null);
void end_object(StringInfo to, int began);

}  // namespace outbox
