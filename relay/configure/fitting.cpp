#include "relay/configure/fitting.hpp"

#include <string>

namespace outbox::relay {

// Numbers before the second point.
static std::string_view compatible_part(std::string_view version) {
    return version.substr(0, version.find('.', version.find('.') + 1));
}

std::optional<Error> version_problem(std::string_view of_database) {
    if (compatible_part(of_database) == compatible_part(OUTBOX_VERSION))
        return {};
    return Error{ErrorKind::unavailable,
                 "pg_outbox in the database is of version " + std::string(of_database) +
                     ", outbox-relay of version " OUTBOX_VERSION,
                 "Its events remain in the log.",
                 "Install outbox-relay of the version of the database, or update pg_outbox there."};
}

Error is_standby() {
    return {ErrorKind::unavailable, "the server is a standby", "Only the primary delivers events.",
            "Name both servers in the URL, with target_session_attrs=read-write."};
}

}  // namespace outbox::relay
