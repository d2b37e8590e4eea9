// Walks a table in the order of a unique index, one batch at a time, for backfills.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// The index, and how its columns are written as texts. Valid while the table is open.
struct TableKey {
    Relation index;
    int columns;
    AttrNumber attributes[INDEX_MAX_KEYS];
};

// Opens the primary key of the table, or else another unique index on columns that are NOT NULL.
// With `columns`, a name[], only an index on these columns. Raises an error if there is none.
TableKey open_key(Relation table, ArrayType* columns);
void close_key(TableKey& key);

// Returns a name[] of its columns.
Datum key_columns(const TableKey& key, Relation table);
// Returns a text[] of its values in a row.
Datum key_of_row(const TableKey& key, TupleTableSlot* row);

// Starts a scan of the rows after a key, in order, or of all rows if the key is nullptr; or of the
// one row with the key.
IndexScanDesc begin_walk(Relation table, const TableKey& key, ::Snapshot snapshot,
                         ArrayType* after);
IndexScanDesc begin_look_up(Relation table, const TableKey& key, ::Snapshot snapshot,
                            ArrayType* values);

}  // namespace outbox
