// Formats rows for people.
#pragma once

#include <string>
#include <string_view>

#include "inbox/transaction.hpp"

namespace outboxctl {

// Escapes control characters, because they could control a terminal.
std::string printable(std::string_view text);

// Returns the first columns under their names, aligned, with numbers to the right, and without a line end
// after the last line; printable.
std::string table_of(const inbox::Result& rows, int columns);

// Returns a row as lines of a name and a value, without those that are null.
std::string record_of(const inbox::Result& rows, int row);

}  // namespace outboxctl
