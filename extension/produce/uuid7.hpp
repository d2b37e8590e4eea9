// Makes UUIDs of version 7 (RFC 9562, section 5.7): sorted by time, unique without coordination.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// The id has 48 bits of milliseconds, 12 bits of the fraction of a millisecond (method 3 of section
// 6.2) and 62 random bits. Ids of one session always increase.
void make_uuid7(pg_uuid_t* id);

}  // namespace outbox
