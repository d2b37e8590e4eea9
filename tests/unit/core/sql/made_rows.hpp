// Rows as the server returns them, made by hand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/sql/copied_rows.hpp"

namespace outbox::sql {

struct MadeColumn {
    const char* name;
    Oid type;
};
using MadeValue = std::optional<std::string>;  // in binary format

inline Rows make_rows(const std::vector<MadeColumn>& columns,
                      const std::vector<std::vector<MadeValue>>& rows) {
    auto copied = std::make_unique<CopiedRows>();
    for (const MadeColumn& column : columns)
        copied->add_column(column.name, column.type);
    for (const std::vector<MadeValue>& row : rows)
        for (const MadeValue& value : row)
            copied->add(value ? std::optional<std::string_view>(*value) : std::nullopt);
    return Rows(std::move(copied));
}

template <class Integer>
std::string big_endian(Integer value) {
    std::string bytes;
    for (std::size_t i = 0; i < sizeof value; i++)
        bytes += static_cast<char>(value >> (8 * (sizeof value - 1 - i)));
    return bytes;
}

// The values of an event, in the order of the columns of outbox.event. Optional ones are null.
inline std::vector<MadeValue> event_values(std::int64_t position) {
    return {big_endian(position),
            big_endian(std::int64_t{77}),         // xid
            big_endian(std::int64_t{1'000'000}),  // occurred_at
            std::string(16, '\7'),
            std::nullopt,
            big_endian(3),  // schema_version
            std::nullopt,
            "topic",
            "item",
            "id",
            "changed",
            "key",
            "application/json",
            std::nullopt,
            "{}"};
}

}  // namespace outbox::sql
