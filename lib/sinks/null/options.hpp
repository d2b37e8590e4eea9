// Options of the null sink: it has none of its own.
#pragma once

#include "core/sink_declaration.hpp"

namespace outbox {

extern const SinkDeclaration null_declaration;

}  // namespace outbox
