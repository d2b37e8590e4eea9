// Checks tables of the extension before C++ code reads their columns by place. Their owner may have
// altered them, and a value taken for another type crashes the server.
#pragma once

#include <span>

#include "extension/base/pg.hpp"

namespace outbox {

// A session caches what it has read of them until that is invalidated. Reading takes locks, so a
// session may learn during the read that the result is old already. With continuous DDL or
// debug_discard_caches this may never end. So the result of the last turn is used: it was true when
// it was asked for, and the next call asks again.
constexpr int max_turns = 3;

// Returns the table with this name in the schema outbox. Raises an error if it was renamed.
Oid find_own_table(const char* name);

// Opens a table of the extension. The extension may be dropped, or give way to the SQL edition, while
// this waits for the lock. The error says then that the transaction can be tried again.
Relation open_own_table(Oid table, LOCKMODE mode);

// Raises an error unless the table begins with columns of these types. Other columns are allowed
// only if they were dropped, or, with `others`, if they follow these.
void check_columns(Relation table, std::span<const Oid> types, bool others = false);

// Does the same for a composite type.
void check_attributes(const char* type, TupleDesc form, std::span<const Oid> types,
                      bool others = false);

// Raises an error if the column (zero-based) of a row of the table is null.
void check_value(Relation table, TupleTableSlot* row, int column);

}  // namespace outbox
