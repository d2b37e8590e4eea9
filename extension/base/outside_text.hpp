// Makes text from peers and producers safe for a column or the server log.
#pragma once

#include <string_view>

#include "extension/base/pg.hpp"

namespace outbox {

// Returns one printable line in the encoding of the database, whatever the bytes are, cut to a
// length worth keeping.
char* line_from_outside(std::string_view utf8);
Datum text_from_outside(std::string_view utf8);

// A name for the server log, which another role has chosen: one printable line. To be made where it
// is logged, because it costs a conversion.
struct NameForLog {
    char text[NAMEDATALEN] = "";

    explicit NameForLog(const char* name);
};

}  // namespace outbox
