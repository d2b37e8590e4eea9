#include "bgworker/relay/spi_call.hpp"

#include "bgworker/base/query_result.hpp"

namespace outbox {

ArrayBuilder array_of(Oid type, size_t room) {
    ArrayBuilder array{};
    array.type = type;
    get_typlenbyvalalign(type, &array.length, &array.by_value, &array.align);
    array.values = static_cast<Datum*>(palloc(Max(room, 1) * sizeof(Datum)));
    array.nulls = static_cast<bool*>(palloc0(Max(room, 1) * sizeof(bool)));
    return array;
}

Datum ArrayBuilder::datum() const {
    if (count == 0)
        return PointerGetDatum(construct_empty_array(type));
    int dimensions[] = {count};
    int lower_bounds[] = {1};
    return PointerGetDatum(construct_md_array(values, nulls, 1, dimensions, lower_bounds, type,
                                              length, by_value, align));
}

ArrayBuilder numbers_or_null(std::span<const std::optional<std::int64_t>> numbers) {
    ArrayBuilder array = array_of(INT8OID, numbers.size());
    for (const std::optional<std::int64_t>& number : numbers)
        if (number)
            array.add(Int64GetDatum(*number));
        else
            array.add_null();
    return array;
}

Datum uuid_datum(const std::uint8_t* bytes) {
    auto* copy = static_cast<pg_uuid_t*>(palloc(sizeof(pg_uuid_t)));
    memcpy(copy->data, bytes, UUID_LEN);
    return UUIDPGetDatum(copy);
}

void Arguments::add(Oid type, Datum value) {
    if (count == max_count)
        elog(ERROR, "too many arguments");
    types[count] = type;
    values[count] = value;
    nulls[count++] = ' ';
}

void Arguments::add(const ArrayBuilder& array) {
    add(get_array_type(array.type), array.datum());
}

void Arguments::add_null(Oid type) {
    add(type, Datum{0});
    nulls[count - 1] = 'n';
}

static CallOutcome outcome_of(const char* function) {
    const char* word = TextDatumGetCString(required_value(function, 0, 1));
    if (strcmp(word, "ok") == 0)
        return CallOutcome::ok;
    if (strcmp(word, "busy") == 0)
        return CallOutcome::busy;
    if (strcmp(word, "lost") != 0)
        elog(ERROR, "%s() returned an unexpected outcome \"%s\"", function, word);
    return CallOutcome::lost;
}

CallOutcome call(const char* function, const char* statement, const Arguments& arguments,
                 std::initializer_list<Oid> columns) {
    const int code =
        SPI_execute_with_args(statement, arguments.count, const_cast<Oid*>(arguments.types),
                              const_cast<Datum*>(arguments.values), arguments.nulls, false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not call %s(): %s", function, SPI_result_code_string(code));
    check_result_row(function, columns);
    return outcome_of(function);
}

}  // namespace outbox
