// How rows of a table become events: a row of outbox.captured, applied to one relation. A partition
// or child may have its columns in other places than the captured table.
#pragma once

#include "extension/capture/capture.hpp"
#include "extension/capture/json_row.hpp"

namespace outbox {

struct CaptureCondition;  // capture_condition.cpp

// The name sorts before those of other triggers, so events of changes that another trigger makes
// come later in the log.
constexpr const char* delete_trigger_name = "00_outbox_capture_delete";
constexpr const char* truncate_trigger_name = "00_outbox_capture_truncate";

enum class CaptureUpdate { full, changed, diff };

// A column that is used in any way.
struct CaptureColumn {
    JsonColumn json;
    FmgrInfo* output;
    bool in_payload;
    bool in_key;  // part of what identifies the row or its aggregate
    bool is_version;
};

// Columns, as places in Capture::columns.
struct ColumnList {
    int* items;
    int count;
};

struct Capture {
    MemoryContext memory;
    Oid table;         // the captured table
    Oid owner;         // of that table
    Oid code_runs_as;  // in backfills: has the rights of both owners; InvalidOid if no role may
    text* aggregate_type;
    ColumnList aggregate_id;
    bool has_ordering_key;  // of its own
    ColumnList ordering_key;
    text* topic;
    int topic_column;  // -1 if none
    text** header_names;
    ColumnList header_columns;
    const char* schema;     // for the header tableschema; nullptr if events do not have it
    Jsonb* common_headers;  // of all events, if there are no header columns; may be nullptr
    text* insert_type;
    text* update_type;
    text* delete_type;
    text* truncate_type;
    text* snapshot_type;
    CaptureUpdate on_update;
    bool old_values;
    bool old_row;  // in events of deletes
    int version;   // column; -1 if the version is the event's position
    CaptureColumn* columns;
    int column_count;
    AttrNumber last_column;
    Expr* condition;                           // nullptr if all rows are captured
    mutable CaptureCondition* idle_condition;  // nullptr if none is free
};

// Adds the header with the schema of the table, if events have it.
void push_schema_header(const Capture& capture, JsonbParseState*& state);

// Returns a trigger function of ours by its name. It needs no privilege on the schema, which the
// caller may lack.
Oid capture_function(const char* name);

// Returns the condition, as pg_node_tree, in our DELETE trigger, where the row is OLD, that is varno 1;
// nullptr if there is none. Conditions of other triggers with this name are ignored.
const char* text_of_condition(Relation relation);

// Reads the condition that the triggers of the relation have.
void read_condition(Capture& capture, Relation relation);

}  // namespace outbox
