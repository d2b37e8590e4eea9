// The types of values that go to the database and come from it.
#pragma once

#include <cstdint>

#include "core/clock.hpp"

namespace outbox::sql {

// A timestamp counts microseconds since 2000-01-01.
inline constexpr Micros postgres_epoch = 946'684'800'000'000;

using Oid = std::uint32_t;

// pg_type.oid
namespace type {
inline constexpr Oid boolean = 16, bytea = 17, int8 = 20, int2 = 21, int4 = 23, text = 25, tid = 27,
                     xid8_array = 271, float8 = 701, bool_array = 1000, int2_array = 1005,
                     int4_array = 1007, text_array = 1009, tid_array = 1010, int8_array = 1016,
                     float8_array = 1022, timestamptz = 1184, interval = 1186, uuid = 2950,
                     uuid_array = 2951, jsonb = 3802, xid8 = 5069;
}  // namespace type

}  // namespace outbox::sql
