// Reads files of the server that an option names: credentials and certificates. All such files are
// read here.
//
// Reading never waits: a name may stand for a pipe without a writer, or for a device. So only
// regular files are read, and only up to a limit.
#pragma once

#include <optional>
#include <string>

#include "core/result.hpp"

namespace outbox {

constexpr std::size_t usual_file_size = 64 * 1024;

// Reads a whole regular file. The detail of an error is the reason without the path.
Result<std::string> read_small_file(const std::string& path,
                                    std::size_t max_size = usual_file_size);

// Checks a file that a library opens itself. Returns std::nullopt if it is regular and readable.
std::optional<Error> check_file(const std::string& path);

}  // namespace outbox
