// Files of the server's own that hold credentials.
#pragma once

#include <string>

#include "core/result.hpp"

namespace outbox {

// The whole of a regular file of moderate size. The detail of an error is the reason alone, without
// the path.
Result<std::string> read_small_file(const std::string& path);

}  // namespace outbox
