// Values in binary format: arrays, and values that are not what they should be.
#include "core/sql/rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/sql/binary_array.hpp"
#include "unit/core/sql/made_rows.hpp"

namespace outbox::sql {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Rows one_value(Oid type, const MadeValue& value) {
    return make_rows({{"v", type}}, {{value}});
}

TEST(Rows, ReadNumbers) {
    EXPECT_EQ(one_value(type::int4, big_endian(-5)).integer(0, 0), -5);
    EXPECT_EQ(one_value(type::int8, big_endian(INT64_MIN)).bigint(0, 0), INT64_MIN);
    EXPECT_EQ(one_value(type::float8, std::string("\x3f\xf8\0\0\0\0\0\0", 8)).number(0, 0), 1.5);
    EXPECT_TRUE(one_value(type::boolean, "\1").boolean(0, 0));
}

TEST(Rows, AValueOfAnotherSizeReadsAsNull) {
    EXPECT_EQ(one_value(type::int8, "123").bigint(0, 0), std::nullopt);
    EXPECT_EQ(one_value(type::int4, big_endian(INT64_MAX)).integer(0, 0), std::nullopt);
    EXPECT_EQ(one_value(type::int8, std::nullopt).bigint(0, 0), std::nullopt);
    const Rows rows = one_value(type::int8, big_endian(std::int64_t{1}));
    EXPECT_EQ(rows.bigint(1, 0), std::nullopt) << "no such row";
    EXPECT_EQ(rows.bigint(0, rows.column("other")), std::nullopt) << "no such column";
    EXPECT_EQ(Rows().bigint(0, Rows().column("v")), std::nullopt);
}

TEST(Rows, ReadArrays) {
    BinaryArray numbers(BinaryArray::Type::int8), texts(BinaryArray::Type::text);
    for (std::int64_t i = 1; i <= 3; i++)
        numbers.add(i);
    texts.add("one");
    texts.add_null();
    texts.add("");
    EXPECT_THAT(one_value(type::int8_array, std::string(numbers.bytes())).bigints(0, 0),
                ElementsAre(1, 2, 3));
    EXPECT_THAT(one_value(type::text_array, std::string(texts.bytes())).texts(0, 0),
                ElementsAre("one", ""))
        << "without the null";
    EXPECT_THAT(one_value(type::int4_array, std::string(numbers.bytes())).integers(0, 0), IsEmpty())
        << "another type";
}

TEST(Rows, AnEmptyArrayOfTheServerHasNoDimension) {
    const std::string empty = big_endian(0) + big_endian(0) + big_endian(type::int8);
    EXPECT_THAT(one_value(type::int8_array, empty).bigints(0, 0), IsEmpty());
    ASSERT_TRUE(array_elements(empty, type::int8));
}

TEST(Rows, PlacesAreBlockAndOffset) {
    BinaryArray places(BinaryArray::Type::tid);
    places.add(std::string_view("\x00\x01\x02\x03\x00\x07", 6));
    EXPECT_THAT(one_value(type::tid_array, std::string(places.bytes())).places(0, 0),
                ElementsAre(Place{0x010203, 7}));
}

TEST(Rows, ADamagedArrayIsNotRead) {
    BinaryArray numbers(BinaryArray::Type::int8);
    for (std::int64_t i = 1; i <= 3; i++)
        numbers.add(i);
    const std::string whole(numbers.bytes());
    for (std::size_t size = 0; size < whole.size(); size++)
        EXPECT_FALSE(array_elements(std::string_view(whole).substr(0, size), type::int8)) << size;
    std::string many = whole;
    many[12] = '\x7f';
    EXPECT_FALSE(array_elements(many, type::int8)) << "more elements than bytes";
}

}  // namespace
}  // namespace outbox::sql
