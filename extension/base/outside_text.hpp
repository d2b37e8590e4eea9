// What peers and producers say, on its way into a column or the server log.
#pragma once

#include <string_view>

#include "extension/base/pg.hpp"

namespace outbox {

// One printable line in the encoding of the database, whatever bytes it is; no longer than is worth
// to keep.
char* line_from_outside(std::string_view utf8);
Datum text_from_outside(std::string_view utf8);

}  // namespace outbox
