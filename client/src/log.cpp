// The log of programs that do not set one. A line is one write(), so that lines of threads and of
// other processes do not mix, and needs no lock.
#include <unistd.h>

#include <chrono>
#include <string>

#include "core/text.hpp"
#include "inbox/source.hpp"
#include "text.hpp"

namespace inbox {

static const char* name_of(Level level) {
    switch (level) {
        case Level::debug:
            return "debug";
        case Level::info:
            return "info";
        case Level::warning:
            return "warning";
        case Level::error:
            return "error";
    }
    return "?";
}

void log_to_stderr(Level level, const std::string& message) {
    if (level < Level::warning)
        return;
    const Time now = std::chrono::time_point_cast<Time::duration>(std::chrono::system_clock::now());
    const std::string line = time_literal(now).value_or("") + ' ' + name_of(level) + ' ' +
                             outbox::printable(message) + '\n';
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace inbox
