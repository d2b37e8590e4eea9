// Copies rows of the log into events, and rows of outbox.delivery, which begin with the same
// columns.
#pragma once

#include "core/event.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// Bytes of a text or bytea: as they are stored, or detoasted or converted.
struct Bytes {
    const char* data;
    size_t size;
};

// Converts the text to UTF-8, which the core and all destinations use.
Bytes utf8_of(Datum text);

// Copies a row into the block. Returns false if the block has no room for it.
bool copy_event(TupleTableSlot* slot, EventBlock& block);

}  // namespace outbox
