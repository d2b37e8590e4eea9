// Makes the sink of a destination, loading its module when it is the first of its kind.
#pragma once

#include "core/result.hpp"
#include "sinks/sink.hpp"

namespace outbox {

// Modules are looked for beside the shared object this code is in.
Result<std::unique_ptr<Sink>> create_sink(const SinkContext& context);

}  // namespace outbox
