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

// Converts the text to UTF-8. Raises an error if that is impossible, as it may be in a database whose
// encoding is another.
Bytes utf8_of(Datum text);
Bytes utf8_of(const char* data, int length);

// Does the same without an error. If the text has no form in UTF-8, the bytes that are not ASCII are
// replaced, and `is_whole` becomes false.
Bytes readable_utf8(Datum text, bool& is_whole);
Bytes readable_utf8(const char* data, int length, bool& is_whole);
// For messages, which may quote such a text.
Bytes readable_utf8(const char* text);

}  // namespace outbox
