// Tells a collector of OpenTelemetry what became of events: a sink around that of a destination.
//
// Each attempt to send an event whose `traceparent` says that its trace is sampled becomes a span,
// a child of the application's. The event itself is not changed.
#pragma once

#include <memory>

#include "core/sink.hpp"
#include "telemetry/tracing.hpp"

namespace outbox {

// Returns `sink` itself if there is no endpoint. If spans cannot be sent, the sink works without
// them, and its report says why.
std::unique_ptr<Sink> traced(std::unique_ptr<Sink> sink, const Tracing& tracing,
                             const SinkContext& context);

}  // namespace outbox
