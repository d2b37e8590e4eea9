// Refuses events that cannot be sent because an expression of their destination failed: a sink
// around that of a destination with the option filter or payload.
//
// Of a batch with such events it passes on the others, but for those behind one of their key. When
// these have ended, the faulty ones are refused for good, and those behind them go again. So the
// pipeline makes dead letters of them as of any refused event, and a broken expression says nothing
// about the destination. If the part that was passed on fails as a whole, so does the batch.
//
// In an ordered sink nothing may take effect after a batch that failed. So batches behind such a
// batch wait here, and are undone with it.
#pragma once

#include <memory>

#include "core/sink.hpp"

namespace outbox {

std::unique_ptr<Sink> screened(std::unique_ptr<Sink> sink);

}  // namespace outbox
