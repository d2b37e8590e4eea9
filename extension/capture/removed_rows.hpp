// Rows that this transaction has deleted, for captures with a version column. A row that is inserted
// again must have a higher version than the event of its delete, or consumers pass over it.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Notes the version of the event by the hash of the row's key. Beyond a limit, no further row is noted.
void note_removed(uint64 key, int64 version);

bool any_removed();
// Forgets the row. Returns false if it was not noted.
bool take_removed(uint64 key, int64& version);

}  // namespace outbox
