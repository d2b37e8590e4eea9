// Sorts the TIDs of a window's events by position, in bounded memory.
//
// Entries come in as the index yields them, by (xid, position), and leave by position. Up to a
// limit they stay in memory. Beyond it they go to a temporary file as sorted runs, which are merged
// while they are read back. The file outlives the transaction that wrote it, so no transaction
// stays open while events are published. Ten million events take a file of 160 MB and 24 MB of
// memory.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

struct WindowEntry {
    int64 position;
    ItemPointerData place;
    uint16 segment;  // of the place
};

struct WindowSpool;  // lives as long as the process; its memory is reused

WindowSpool* create_spool();

// Forgets the remaining entries and starts over.
void reset_spool(WindowSpool* spool);
void add_to_spool(WindowSpool* spool, WindowEntry entry);
// To be called after the last add. Sorts the entries and returns how many there are.
uint64 sort_spool(WindowSpool* spool);
// Returns the remaining entry with the lowest position, or nullptr. It is valid until the next
// call.
const WindowEntry* peek_spool(WindowSpool* spool);
void drop_from_spool(WindowSpool* spool);

}  // namespace outbox
