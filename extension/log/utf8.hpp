// Texts and bytes of events, as the core and all destinations use them.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Bytes of a text or bytea: as they are stored, or detoasted or converted.
struct Bytes {
    const char* data;
    size_t size;
};

Bytes bytes_of(Datum value);

// Converts the text to UTF-8.
Bytes utf8_of(Datum text);
Bytes utf8_of(const char* data, int length);

}  // namespace outbox
