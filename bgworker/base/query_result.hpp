// What statements on our own tables and functions return, and workers read with SPI. Their owner may
// have altered them, and what is taken for a value of another type ends the server.
#pragma once

#include <initializer_list>

#include "extension/base/pg.hpp"

namespace outbox {

// Raises an error unless the last statement returned columns of these types. `source`: what was
// asked, for the message.
void check_result(const char* source, std::initializer_list<Oid> types);

// The same, and there is at least one row.
void check_result_row(const char* source, std::initializer_list<Oid> types);

// The number of the column of this name; raises an error unless there is one of this type.
int result_column(const char* source, const char* name, Oid type);

// Rows from 0, columns from 1.
Datum result_value(uint64 row, int column, bool* is_null);

// Raises an error if it is null.
Datum required_value(const char* source, uint64 row, int column);

}  // namespace outbox
