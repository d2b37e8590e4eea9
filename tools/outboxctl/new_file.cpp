#include "new_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "session.hpp"

namespace outboxctl {

static Refused failed(const char* what, const std::string& path) {
    return Refused(std::string("ERROR:  could not ") + what + " file \"" + path +
                   "\": " + std::strerror(errno) +
                   (errno == EEXIST ? "\nHINT:  Name a file that does not exist." : ""));
}

NewFile::NewFile(std::string path)
    : path_(std::move(path)),
      descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    if (descriptor_ < 0)
        throw failed("create", path_);
}

NewFile::~NewFile() {
    close(descriptor_);
    if (!keeps_)
        unlink(path_.c_str());
}

void NewFile::write(const std::string& text) {
    std::string_view left = text;
    while (!left.empty()) {
        const ssize_t written = ::write(descriptor_, left.data(), left.size());
        if (written < 0 && errno != EINTR)
            throw failed("write", path_);
        left.remove_prefix(written < 0 ? 0 : static_cast<std::size_t>(written));
    }
    if (fsync(descriptor_) != 0)
        throw failed("write", path_);
}

void NewFile::keep() noexcept {
    keeps_ = true;
}

}  // namespace outboxctl
