// Walks a table in the order of a unique index, a batch at a time: the way of a backfill.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// The index, and how its columns are written down as texts. Good while the table is open.
struct TableKey {
    Relation index;
    int columns;
    AttrNumber attributes[INDEX_MAX_KEYS];
};

// Opens the primary key of the table, or else another unique index on columns that are NOT NULL.
// With `columns`, a name[], only one that is on these. Raises an error if there is none.
TableKey open_key(Relation table, ArrayType* columns);
void close_key(TableKey& key);

// name[] of its columns.
Datum key_columns(const TableKey& key, Relation table);
// text[] of its values in a row.
Datum key_of_row(const TableKey& key, TupleTableSlot* row);

// Rows after a key, in order; nullptr: from the first row on. Or the one row with the key.
IndexScanDesc begin_walk(Relation table, const TableKey& key, ::Snapshot snapshot,
                         ArrayType* after);
IndexScanDesc begin_look_up(Relation table, const TableKey& key, ::Snapshot snapshot,
                            ArrayType* values);

}  // namespace outbox
