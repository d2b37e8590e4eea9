// The options of a sink that exists only in the tests. It shows what a new sink needs
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
