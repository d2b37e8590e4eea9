// Events of the rows of captured tables.
#pragma once

#include "extension/capture/capture_config.hpp"

namespace outbox {

// Returns whether the condition of the capture accepts the row.
bool is_captured(const Capture& capture, TupleTableSlot* row);

void capture_insert(const Capture& capture, TupleTableSlot* row);
void capture_update(const Capture& capture, TupleTableSlot* old_row, TupleTableSlot* new_row);
void capture_delete(const Capture& capture, TupleTableSlot* row);
void capture_truncate(const Capture& capture, Relation truncated);

}  // namespace outbox
