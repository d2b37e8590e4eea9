// The options of a sink that is only in the tests: what it takes to add one
// (docs/architecture/new-sink.md).
#pragma once

#include <string>

#include "core/destination.hpp"

namespace outbox {

struct TinyOptions {
    std::string prefix;
};

TinyOptions tiny_options(const Destination& destination);

extern const SinkDeclaration tiny_declaration;

}  // namespace outbox
