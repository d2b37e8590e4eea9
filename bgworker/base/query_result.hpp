// Checks the results of SPI statements on our own tables and functions. Their owner may have
// altered them, and a value taken for another type crashes the server.
#pragma once

#include <initializer_list>

#include "extension/base/pg.hpp"

namespace outbox {

// Raises an error unless the last statement returned columns of these types. `source` names the
// table or function in the message.
void check_result(const char* source, std::initializer_list<Oid> types);

// Does the same, and raises an error if there is no row.
void check_result_row(const char* source, std::initializer_list<Oid> types);

// Rows count from 0, columns from 1.
Datum result_value(uint64 row, int column, bool* is_null);

// Raises an error if the value is null.
Datum required_value(const char* source, uint64 row, int column);

}  // namespace outbox
