#include "sinks/transport/small_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace outbox {

static constexpr std::size_t max_size = 64 * 1024;

// Reads to the end; false: errno says why not.
static bool read_all(int descriptor, std::string& text) {
    char buffer[4096];
    while (true) {
        const ssize_t size = read(descriptor, buffer, sizeof buffer);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0)
            return false;
        if (size == 0)
            return true;
        text.append(buffer, static_cast<std::size_t>(size));
        if (text.size() > max_size) {
            errno = EFBIG;
            return false;
        }
    }
}

Result<std::string> read_small_file(const std::string& path) {
    // Not to wait for whoever might write to a pipe of that name.
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status {};
    std::string text;
    bool read = false;
    if (descriptor >= 0 && fstat(descriptor, &status) == 0) {
        errno = EINVAL;
        read = S_ISREG(status.st_mode) && read_all(descriptor, text);
    }
    const int error = errno;
    if (descriptor >= 0)
        close(descriptor);
    if (read)
        return text;
    const std::string reason = std::strerror(error);
    return Error{ErrorKind::unavailable, "could not read \"" + path + "\": " + reason, reason};
}

}  // namespace outbox
