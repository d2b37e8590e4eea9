// Rows as libpq returns them, made by hand.
#pragma once

#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "relay/database/parameters.hpp"
#include "relay/database/rows.hpp"

namespace outbox::relay {

struct MadeColumn {
    const char* name;
    Oid type;
};
using MadeValue = std::optional<std::string>;  // in binary format

inline Rows make_rows(const std::vector<MadeColumn>& columns,
                      const std::vector<std::vector<MadeValue>>& rows) {
    PGresult* result = PQmakeEmptyPGresult(nullptr, PGRES_TUPLES_OK);
    std::vector<PGresAttDesc> attributes(columns.size());
    for (std::size_t i = 0; i < columns.size(); i++) {
        attributes[i].name = const_cast<char*>(columns[i].name);
        attributes[i].typid = columns[i].type;
        attributes[i].format = 1;
    }
    PQsetResultAttrs(result, static_cast<int>(columns.size()), attributes.data());
    for (std::size_t row = 0; row < rows.size(); row++)
        for (std::size_t i = 0; i < rows[row].size(); i++) {
            const MadeValue& value = rows[row][i];
            std::string bytes = value.value_or("");
            PQsetvalue(result, static_cast<int>(row), static_cast<int>(i),
                       value ? bytes.data() : nullptr, value ? static_cast<int>(bytes.size()) : -1);
        }
    return Rows(result);
}

template <class Integer>
std::string big_endian(Integer value) {
    std::string bytes;
    for (std::size_t i = 0; i < sizeof value; i++)
        bytes += static_cast<char>(value >> (8 * (sizeof value - 1 - i)));
    return bytes;
}

}  // namespace outbox::relay
