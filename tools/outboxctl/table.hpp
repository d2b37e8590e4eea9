// Rows as people read them.
#pragma once

#include <string>

#include "inbox/transaction.hpp"

namespace outboxctl {

// Columns under their names, aligned, numbers to the right; without a line end after the last line.
// What could do things to a terminal is escaped.
std::string table_of(const inbox::Result& rows);

}  // namespace outboxctl
