// Supports captures of tables that Citus manages: docs/operations/citus.md. Nothing here links to
// Citus; without it all tables are plain.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

enum class CitusType { none, distributed, reference, local, shard };

struct CitusCapture {
    CitusType type;           // of the table
    CitusType captured_type;  // of the captured table that it belongs to
    const char* argument;     // of its triggers; nullptr if they need none
};

// Looks up a table that belongs to a captured table, or is one.
CitusCapture find_citus_capture(Oid table);

// Raises an error if Citus has tables of this kind that cannot be captured.
void check_citus_type(CitusType type, const char* table);

// Raises an error if a role may not capture tables on this node. Citus creates triggers as the
// owner of the table.
void check_may_capture(Oid role);

// Raises an error if triggers of such a table cannot fire for replicated changes.
void check_citus_fire(CitusType type, const char* fire, const char* table);

// Raises an error if the table belongs to Citus: its rows are on several nodes.
void check_not_of_citus(Oid table);

// Makes Citus accept triggers on distributed tables until the current level of settings ends, which
// may be the transaction.
void allow_distributed_triggers();

// Returns whether a trigger has one of our names. On shards it is followed by the number of the
// shard.
bool is_trigger_called(const char* trigger, const char* name);

}  // namespace outbox
