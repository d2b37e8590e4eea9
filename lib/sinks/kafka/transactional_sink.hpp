// The kafka sink with the option exactly_once.
#pragma once

#include "core/sink.hpp"

namespace outbox {

Sink* new_transactional_sink(const SinkContext& context);

}  // namespace outbox
