// A sink that confirms everything at once, for benchmarks and tests.
#pragma once

#include "core/sink.hpp"

namespace outbox {

std::unique_ptr<Sink> create_null_sink();

}  // namespace outbox
