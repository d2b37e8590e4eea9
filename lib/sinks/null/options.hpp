// A destination that confirms everything at once has no options of its own.
#pragma once

#include "core/sink_declaration.hpp"

namespace outbox {

extern const SinkDeclaration null_declaration;

}  // namespace outbox
