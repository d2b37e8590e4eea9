// Makes text from peers and producers safe for a column or the server log.
#pragma once

#include <string_view>

#include "extension/base/pg.hpp"

namespace outbox {

// Returns one printable line in the encoding of the database, whatever the bytes are, cut to a
// length worth keeping.
char* line_from_outside(std::string_view utf8);
Datum text_from_outside(std::string_view utf8);

}  // namespace outbox
