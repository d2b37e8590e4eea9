// Makes the sink or the check of a destination. Loads the module of the sink if necessary.
#pragma once

#include <string>

#include "core/check.hpp"
#include "core/result.hpp"
#include "core/sink.hpp"

namespace outbox {

// Modules are in the same directory as the shared object that contains this code, unless a program
// says where they are. It must do so before it starts threads. `directory` ends in a slash.
void load_modules_from(std::string directory);

Result<std::unique_ptr<Sink>> create_sink(const SinkContext& context);
// Returns nullptr if there is nothing to check.
Result<std::unique_ptr<Check>> create_check(const CheckContext& context);

}  // namespace outbox
