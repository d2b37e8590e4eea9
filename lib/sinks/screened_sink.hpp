// Refuses events that cannot be sent, because an expression of their destination failed, or because
// their row could not be read whole: a sink around that of each destination.
//
// From a batch with such events it passes on the others, except those behind a faulty one of their
// key. When these have ended, the faulty ones are refused permanently, and those behind them are
// sent again. So the pipeline makes the faulty ones dead letters like any refused event, and a
// broken expression does not count against the destination. If the part that was passed on fails as
// a whole, so does the batch.
//
// In an ordered sink nothing may take effect after a batch that failed. So batches behind such a
// batch wait here, and are undone with it.
#pragma once

#include <memory>

#include "core/sink.hpp"

namespace outbox {

std::unique_ptr<Sink> screened(std::unique_ptr<Sink> sink);

}  // namespace outbox
