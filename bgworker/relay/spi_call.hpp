// Calls functions of sql/pg_outbox/relay.sql, which relays outside the server call too, by SPI. They
// lock the cursor of the destination for the rest of the transaction.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "extension/base/pg.hpp"

namespace outbox {

// What became of a call; see sql/pg_outbox/relay.sql.
enum class CallOutcome { ok, busy, lost };

// An array that is filled element by element, with room for all of them.
struct ArrayBuilder {
    Oid type;
    int16 length;
    bool by_value;
    char align;
    Datum* values;
    bool* nulls;
    int count;

    void add(Datum value) { values[count++] = value; }
    void add_null() { nulls[count++] = true; }
    Datum datum() const;
};
ArrayBuilder array_of(Oid type, size_t room);

// Returns an array with null for a number that is not there.
ArrayBuilder numbers_or_null(std::span<const std::optional<std::int64_t>> numbers);

Datum uuid_datum(const std::uint8_t* bytes);

struct Arguments {
    static constexpr int max_count = 20;
    Oid types[max_count];
    Datum values[max_count];
    char nulls[max_count];
    int count;

    void add(Oid type, Datum value);
    void add(const ArrayBuilder& array);
    void add_null(Oid type);
};

// Executes a statement that returns one row of columns of these types, the first of which is the
// outcome. `function` names the function in messages.
CallOutcome call(const char* function, const char* statement, const Arguments& arguments,
                 std::initializer_list<Oid> columns);

}  // namespace outbox
