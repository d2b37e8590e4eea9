// Formats rows for people.
#pragma once

#include <string>

#include "inbox/transaction.hpp"

namespace outboxctl {

// Returns columns under their names, aligned, with numbers to the right, and without a line end
// after the last line. Control characters are escaped, because they could control a terminal.
std::string table_of(const inbox::Result& rows);

}  // namespace outboxctl
