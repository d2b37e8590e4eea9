// Values of parameters of SPI statements, allocated in the current memory context.
#pragma once

#include <string_view>

#include "extension/base/pg.hpp"

namespace outbox {

// Returns a value of type name.
Datum name_datum(const char* text);

// Returns a text in the encoding of the server. `utf8` must have characters of that encoding only:
// texts of peers are ASCII by then, and the others come from the server.
Datum server_text(std::string_view utf8);

}  // namespace outbox
