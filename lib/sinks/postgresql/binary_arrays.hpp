// Builds arrays in PostgreSQL's binary format (array_recv in the server), as parameters of a
// prepared statement: one array per column, one element per event.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/text.hpp"

namespace outbox {

class BinaryArray {
  public:
    enum class Type : std::uint32_t {  // pg_type.oid of the elements
        bytea = 17,
        int8 = 20,
        int4 = 23,
        text = 25,
        timestamptz = 1184,
        uuid = 2950,
        jsonb = 3802,
    };

    explicit BinaryArray(Type type) : type_(type) {}

    // Removes all elements, and keeps the memory.
    void clear();
    void add_null();
    void add(std::string_view bytes);  // text, bytea
    void add(std::int32_t value);
    void add(std::int64_t value);
    void add(const Uuid& value);
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

}  // namespace outbox
