// The parameters of a statement, in PostgreSQL's binary format.
#pragma once

#include <libpq-fe.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/text.hpp"

namespace outbox::relay {

// pg_type.oid
namespace type {
inline constexpr Oid boolean = 16, bytea = 17, int8 = 20, int2 = 21, int4 = 23, text = 25,
                     float8 = 701, int2_array = 1005, int4_array = 1007, text_array = 1009,
                     tid_array = 1010, int8_array = 1016, float8_array = 1022, timestamptz = 1184,
                     interval = 1186, uuid = 2950, uuid_array = 2951, jsonb = 3802, xid8 = 5069,
                     bool_array = 1000, xid8_array = 271;
}  // namespace type

class Parameters {
  public:
    Parameters& null(Oid type);
    Parameters& boolean(bool value);
    Parameters& integer(std::int32_t value);
    Parameters& bigint(std::int64_t value);
    Parameters& number(double value);
    Parameters& text(std::string_view value);
    Parameters& uuid(const Uuid& value);
    Parameters& interval(Micros value);
    Parameters& jsonb(std::string_view value);
    // `bytes` are those of an array, as BinaryArray makes them.
    Parameters& array(Oid type, std::string_view bytes);

    // Sends the statement. Returns false if libpq refuses; its error message says why.
    bool send(PGconn* connection, const char* statement) const;

  private:
    Parameters& add(Oid type, std::string_view bytes);

    std::string bytes_;
    std::vector<Oid> types_;
    std::vector<std::size_t> ends_;  // of each value in bytes_
    std::vector<bool> nulls_;
};

}  // namespace outbox::relay
