// Arrays in the server's binary format, compared with recorded bytes of array_send().
#include "core/sql/binary_array.hpp"

#include <gtest/gtest.h>

namespace outbox::sql {
namespace {

std::string hex(std::string_view bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (char c : bytes) {
        text += digits[static_cast<unsigned char>(c) >> 4];
        text += digits[static_cast<unsigned char>(c) & 0xf];
    }
    return text;
}

TEST(BinaryArray, AnArrayOfNumbersWithANull) {
    BinaryArray array(BinaryArray::Type::int8);
    array.clear();
    array.add(std::int64_t{1});
    array.add_null();
    array.add(std::int64_t{-2});
    // array_send('{1,NULL,-2}'::bigint[])
    EXPECT_EQ(hex(array.bytes()),
              "0000000100000001000000140000000300000001"
              "000000080000000000000001"
              "ffffffff"
              "00000008fffffffffffffffe");
}

TEST(BinaryArray, TextsJsonAndTimes) {
    BinaryArray texts(BinaryArray::Type::text);
    texts.clear();
    texts.add("ab");
    texts.add("");
    EXPECT_EQ(hex(texts.bytes()),
              "0000000100000000000000190000000200000001"
              "000000026162"
              "00000000");

    BinaryArray json(BinaryArray::Type::jsonb);
    json.clear();
    json.add_json("[]");
    EXPECT_EQ(hex(json.bytes()),
              "000000010000000000000eda0000000100000001"
              "00000003015b5d");

    BinaryArray times(BinaryArray::Type::timestamptz);
    times.clear();
    times.add_timestamp(946'684'800'000'001);  // a microsecond after 2000-01-01
    EXPECT_EQ(hex(times.bytes()),
              "0000000100000000000004a00000000100000001"
              "000000080000000000000001");
}

TEST(BinaryArray, StartsOver) {
    BinaryArray array(BinaryArray::Type::int4);
    array.clear();
    array.add_null();
    array.clear();
    array.add(std::int32_t{7});
    EXPECT_EQ(hex(array.bytes()),
              "0000000100000000000000170000000100000001"
              "0000000400000007");
}

}  // namespace
}  // namespace outbox::sql
