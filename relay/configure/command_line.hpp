// The command line of outbox-relay.
#pragma once

#include <variant>

#include "relay/configure/sources.hpp"

namespace outbox::relay {

constexpr int wrong_usage = 2;  // exit code

// Returns the arguments. If there is nothing more to do, as after --help, returns the exit code.
std::variant<Arguments, int> parse_command_line(int argc, const char* const* argv);

}  // namespace outbox::relay
