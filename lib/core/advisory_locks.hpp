// Advisory locks. sql/constants.hpp gives their numbers to SQL by name.
#pragma once

#include <cstdint>

namespace outbox {

// The class ("outb") of the locks of a database. In it, a relay outside the server that serves a
// destination holds the lock with the number of its cursor, and one that sleeps holds the wake lock:
// sql/pg_outbox/relay.sql says why.
inline constexpr std::int32_t lock_class = 1869968482;
inline constexpr std::int32_t wake_lock = 0;
inline constexpr std::int32_t restore_lock = -1;  // of the SQL edition: one transaction restores
inline constexpr std::int32_t maintain_lock =
    -2;  // of the SQL edition: one relay looks after the log

}  // namespace outbox
