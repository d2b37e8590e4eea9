#include "extension/base/identity.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "extension/base/pg.hpp"
#include "extension/base/settings.hpp"

namespace outbox {

// Of the postmaster, from which all processes are forked. Empty if there is none.
static bool identity_is_known = false;
static char own_identity[64] = "";

// Returns how many bytes of the first line of a text are an identity.
static std::size_t length_of_identity(const char* text, std::size_t size) {
    const auto* end = std::find(text, text + size, '\n');
    while (end > text && isspace(static_cast<unsigned char>(end[-1])))
        end--;
    const bool is_printable =
        std::all_of(text, end, [](char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\'; });
    return is_printable ? static_cast<std::size_t>(end - text) : 0;
}

void read_own_identity() {
    identity_is_known = true;
    const char* path = settings::identity_file;
    if (*path == '\0')
        return;
    char text[sizeof own_identity];
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // it may be a pipe
    const ssize_t size = file < 0 ? -1 : read(file, text, sizeof text);
    const int error = errno;
    if (file >= 0)
        close(file);
    if (size < 0) {
        errno = error;
        ereport(WARNING,
                (errcode_for_file_access(),
                 errmsg("could not read outbox.identity_file \"%s\": %s", path, strerror(error)),
                 errdetail("Databases that an installation with an identity has served "
                           "deliver nothing here.")));
        return;
    }
    const std::size_t length = length_of_identity(text, static_cast<std::size_t>(size));
    if (length == 0 || length == sizeof text) {
        ereport(WARNING, (errmsg("outbox.identity_file \"%s\" has no identity", path),
                          errhint("Its first line must have 1 to %d printable ASCII characters, "
                                  "without spaces, quotes and backslashes.",
                                  static_cast<int>(sizeof text) - 1)));
        return;
    }
    memcpy(own_identity, text, length);
    own_identity[length] = '\0';
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_own_identity) {
    using namespace outbox;
    if (!identity_is_known)
        PG_RETURN_NULL();
    PG_RETURN_TEXT_P(cstring_to_text(own_identity));
}
