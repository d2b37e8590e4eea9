// Preloaded into a server, whose disk is full for tables and indexes while the file exists that OUTBOX_DISK_FULL names.
// If that file has a text, the disk is full for files only whose path ends with it. Files do not grow; WAL does.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

bool is_full_for(std::string_view path) {
    static const char* const name = std::getenv("OUTBOX_DISK_FULL");
    const int file = name != nullptr ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return false;
    std::array<char, 256> text{};
    const ssize_t size = read(file, text.data(), text.size());
    close(file);
    const bool is_table = path.find("/base/") != path.npos || path.find("/pg_tblspc/") != path.npos;
    return is_table && size >= 0 &&
           path.ends_with(std::string_view(text.data(), static_cast<std::size_t>(size)));
}

bool is_full(int file, off64_t end) {
    std::array<char, 64> link{};
    std::array<char, 4096> path{};
    std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", file);
    const ssize_t size = readlink(link.data(), path.data(), path.size());
    struct stat64 now {};
    return size > 0 && fstat64(file, &now) == 0 && end > now.st_size &&
           is_full_for({path.data(), static_cast<std::size_t>(size)});
}

template <typename Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" ssize_t pwrite64(int file, const void* data, std::size_t size, off64_t at) {
    static auto* const real = next<decltype(pwrite64)>("pwrite64");
    if (is_full(file, at + static_cast<off64_t>(size))) {
        errno = ENOSPC;
        return -1;
    }
    return real(file, data, size, at);
}

extern "C" ssize_t pwrite(int file, const void* data, std::size_t size, off_t at) {
    return pwrite64(file, data, size, at);
}

// Later majors write several pages at once.
extern "C" ssize_t pwritev64(int file, const iovec* parts, int count, off64_t at) {
    static auto* const real = next<decltype(pwritev64)>("pwritev64");
    off64_t end = at;
    for (int i = 0; i < count; i++)
        end += static_cast<off64_t>(parts[i].iov_len);
    if (is_full(file, end)) {
        errno = ENOSPC;
        return -1;
    }
    return real(file, parts, count, at);
}

extern "C" ssize_t pwritev(int file, const iovec* parts, int count, off_t at) {
    return pwritev64(file, parts, count, at);
}

// And reserve many.
extern "C" int posix_fallocate64(int file, off64_t at, off64_t size) {
    static auto* const real = next<decltype(posix_fallocate64)>("posix_fallocate64");
    return is_full(file, at + size) ? ENOSPC : real(file, at, size);
}

extern "C" int posix_fallocate(int file, off_t at, off_t size) {
    return posix_fallocate64(file, at, size);
}
