// Makes the sink of a destination, or a check of it, loading its module when it is the first of its
// kind.
#pragma once

#include "core/check.hpp"
#include "core/result.hpp"
#include "core/sink.hpp"

namespace outbox {

// Modules are looked for beside the shared object this code is in.
Result<std::unique_ptr<Sink>> create_sink(const SinkContext& context);
// nullptr: there is nothing to look at.
Result<std::unique_ptr<Check>> create_check(const CheckContext& context);

}  // namespace outbox
