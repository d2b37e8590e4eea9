// Tables of the extension's own, as C++ code finds them: columns by their places. Their owner may
// have altered them, and what is taken for a value of another type ends the server.
#pragma once

#include <span>

#include "extension/base/pg.hpp"

namespace outbox {

// A session keeps what it has read of them until it is invalidated. Reading takes locks, and so may
// hear that what was just read is old. Where that does not end (DDL that goes on and on,
// debug_discard_caches) the last of these turns has to do: its answer was true when it was asked for,
// and the next call asks again.
constexpr int max_turns = 3;

// Raises an error unless it is a table that begins with columns of these types, and has no others but
// dropped ones; with `others`, whatever comes behind.
void check_columns(Relation table, std::span<const Oid> types, bool others = false);

// The same for a composite type.
void check_attributes(const char* type, TupleDesc form, std::span<const Oid> types,
                      bool others = false);

// Raises an error if the column (zero-based) of a row of the table is null.
void check_value(Relation table, TupleTableSlot* row, int column);

}  // namespace outbox
