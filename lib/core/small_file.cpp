#include "core/small_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace outbox {

// Reads to the end. If it returns false, errno has the reason.
static bool read_all(int descriptor, std::size_t max_size, std::string& text) {
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

// Returns -1 and sets errno on failure. Follows links, because certificates are often links.
static int open_regular(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat status {};
    if (descriptor < 0 || (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)))
        return descriptor;
    close(descriptor);
    errno = EINVAL;
    return -1;
}

static Error not_read(const std::string& path, int error) {
    const std::string reason = std::strerror(error);
    return {ErrorKind::unavailable, "could not read \"" + path + "\": " + reason, reason};
}

Result<std::string> read_small_file(const std::string& path, std::size_t max_size) {
    const int descriptor = open_regular(path);
    std::string text;
    const bool read = descriptor >= 0 && read_all(descriptor, max_size, text);
    const int error = errno;
    if (descriptor >= 0)
        close(descriptor);
    if (!read)
        return not_read(path, error);
    return text;
}

std::optional<Error> check_file(const std::string& path) {
    const int descriptor = open_regular(path);
    if (descriptor < 0)
        return not_read(path, errno);
    close(descriptor);
    return std::nullopt;
}

}  // namespace outbox
