// Builds arrays in PostgreSQL's binary format (array_recv in the server), as parameters of a
// prepared statement: one array per column, one element per event.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/text.hpp"

namespace outbox::sql {

class BinaryArray {
  public:
    enum class Type : std::uint32_t {  // pg_type.oid of the elements
        boolean = 16,
        bytea = 17,
        int8 = 20,
        int4 = 23,
        text = 25,
        tid = 27,
        float8 = 701,
        timestamptz = 1184,
        uuid = 2950,
        jsonb = 3802,
        xid8 = 5069,
    };

    explicit BinaryArray(Type type) : type_(type) { clear(); }

    // Removes all elements, and keeps the memory.
    void clear();
    void add_null();
    void add(std::string_view bytes);  // text, bytea; tid as it is sent
    void add(std::int32_t value);
    void add(std::int64_t value);  // int8, xid8
    void add(const Uuid& value);
    void add_boolean(bool value);
    void add_number(double value);  // float8
    void add_timestamp(std::int64_t unix_micros);
    void add_json(std::string_view text);  // jsonb

    // The value of the parameter. It is valid until the next change.
    std::string_view bytes();

  private:
    void put_size(std::uint32_t size);

    Type type_;
    std::string buffer_;
    std::uint32_t count_ = 0;
    bool has_null_ = false;
};

template <class Values>
std::string array_of(BinaryArray::Type type, const Values& values) {
    BinaryArray array(type);
    for (const auto& value : values)
        array.add(value);
    return std::string(array.bytes());
}

}  // namespace outbox::sql
