// How the rows of a table become events: a row of outbox.captured, as seen from one relation. A
// partition or child may have its columns in other places than the table that is captured.
#pragma once

#include "extension/capture/capture.hpp"
#include "extension/capture/json_row.hpp"

namespace outbox {

struct Condition;  // capture_condition.cpp

// So that it comes before all others: what another trigger changes then comes later in the log.
constexpr const char* delete_trigger_name = "00_outbox_capture_delete";

enum class CaptureUpdate { full, changed, diff };

// A column that is used in any way.
struct CaptureColumn {
    JsonColumn json;
    FmgrInfo* output;
    bool in_payload;
    bool in_key;  // identifies the row, or its aggregate
    bool is_version;
};

// Columns, as places in Capture::columns.
struct ColumnList {
    int* items;
    int count;
};

struct Capture {
    MemoryContext memory;
    Oid table;         // the one that is captured
    Oid owner;         // of that table
    Oid code_runs_as;  // its functions, and those of the relation's owner; InvalidOid: none may
    text* aggregate_type;
    ColumnList aggregate_id;
    bool has_ordering_key;  // of its own
    ColumnList ordering_key;
    text* topic;
    int topic_column;  // -1: none
    text** header_names;
    ColumnList header_columns;
    text* insert_type;
    text* update_type;
    text* delete_type;
    text* truncate_type;
    text* snapshot_type;
    CaptureUpdate on_update;
    bool old_values;
    bool old_row;  // in events of deletes
    int version;   // column; -1: the position of the event is its version
    CaptureColumn* columns;
    int column_count;
    AttrNumber last_column;
    List* condition;                    // as planned; NIL: all rows are captured
    mutable Condition* idle_condition;  // nullptr: those that there are are being evaluated
};

// A trigger function of ours, by its name. Not everybody who comes here may look into the schema.
Oid capture_function(const char* name);

// The condition that the triggers of the relation have.
void prepare_condition(Capture& capture, Relation relation);

}  // namespace outbox
