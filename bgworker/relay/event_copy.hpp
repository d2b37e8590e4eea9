// Rows of the log, or of outbox.delivery, whose first columns are the same, as events.
#pragma once

#include "core/event.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// Bytes of a text or bytea as they lie in the row, detoasted or converted.
struct Bytes {
    const char* data;
    size_t size;
};

// In the encoding that the core and all destinations know.
Bytes utf8_of(Datum text);

// Copies a row into the block; false when the block has no room for it.
bool copy_event(TupleTableSlot* slot, EventBlock& block);

}  // namespace outbox
