// Copies rows of the log into events, and rows of outbox.delivery, which begin with the same
// columns.
#pragma once

#include "core/event.hpp"
#include "extension/destinations/expressions.hpp"
#include "extension/log/utf8.hpp"

namespace outbox {

// Copies a row into the block, with what `change` replaces; nullptr if nothing. Returns false if the
// block has no room for it.
bool copy_event(TupleTableSlot* slot, EventBlock& block, const EventChange* change = nullptr);

}  // namespace outbox
