// Files of the server that an option names: credentials and certificates. The one way they are
// read.
//
// Nothing here waits: a name may stand for a pipe that nobody writes to, or for a device. Only
// regular files are read, and only so much of them.
#pragma once

#include <optional>
#include <string>

#include "core/result.hpp"

namespace outbox {

constexpr std::size_t usual_file_size = 64 * 1024;

// The whole of a regular file. The detail of an error is the reason alone, without the path.
Result<std::string> read_small_file(const std::string& path,
                                    std::size_t max_size = usual_file_size);

// For files that a library opens itself: std::nullopt if the file is regular and can be read.
std::optional<Error> check_file(const std::string& path);

}  // namespace outbox
