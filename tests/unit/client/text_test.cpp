#include "text.hpp"

#include <gmock/gmock.h>

namespace inbox {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(ClientText, Uuids) {
    EXPECT_TRUE(is_uuid("0192a3b4-0000-7000-8000-00000000AbCd"));
    EXPECT_FALSE(is_uuid(""));
    EXPECT_FALSE(is_uuid("0192a3b4-0000-7000-8000-00000000abcg"));
    EXPECT_FALSE(is_uuid("0192a3b400000-7000-8000-00000000abcd"));
    EXPECT_FALSE(is_uuid("{192a3b4-0000-7000-8000-00000000abcd"));
}

TEST(ClientText, MadeUuidsAreValidAndTheSameForTheSame) {
    const std::string id = made_uuid("s", "1");
    EXPECT_TRUE(is_uuid(id));
    EXPECT_EQ(id[14], '8');
    EXPECT_EQ(id, made_uuid("s", "1"));
    EXPECT_NE(id, made_uuid("s", "2"));
    EXPECT_NE(id, made_uuid("t", "1"));
}

TEST(ClientText, Arrays) {
    const std::vector<std::string> none, some{"a", "b\"c\\d", ""};
    EXPECT_EQ(array_literal(none), "{}");
    EXPECT_EQ(array_literal(some), R"({"a","b\"c\\d",""})");
}

TEST(ClientText, Times) {
    EXPECT_EQ(time_literal({}), std::nullopt);
    EXPECT_EQ(time_literal(Time{std::chrono::microseconds{1709208000123456}}),
              "2024-02-29T12:00:00.123456Z");
    EXPECT_EQ(time_literal(Time{std::chrono::microseconds{-1}}), "1969-12-31T23:59:59.999999Z");
}

TEST(ClientText, CleanUtf8) {
    EXPECT_EQ(clean_utf8("aä€😀"), "aä€😀");
    EXPECT_EQ(clean_utf8(std::string_view("a\0b", 3)), "a?b");
    EXPECT_EQ(clean_utf8("\xff\xc3"), "??");
    EXPECT_EQ(clean_utf8("\xc0\xaf"), "??");            // overlong
    EXPECT_EQ(clean_utf8("\xed\xa0\x80"), "???");       // a surrogate
    EXPECT_EQ(clean_utf8("\xf4\x90\x80\x80"), "????");  // beyond Unicode
    EXPECT_EQ(clean_utf8("\xe2\x82x"), "??x");
}

TEST(ClientText, HeadersToJson) {
    EXPECT_EQ(headers_to_json({}), std::nullopt);
    EXPECT_EQ(headers_to_json({{"a", "1"}, {"b\"", "\n\\ä"}}),
              "{\"a\":\"1\",\"b\\\"\":\"\\u000a\\\\ä\"}");
}

TEST(ClientText, HeadersFromJson) {
    EXPECT_THAT(headers_from_json("{}"), IsEmpty());
    EXPECT_THAT(headers_from_json(R"({"a": "x", "b": 1.5, "c": true, "d": null, "e": ""})"),
                ElementsAre(Pair("a", "x"), Pair("b", "1.5"), Pair("c", "true"), Pair("e", "")));
    EXPECT_THAT(headers_from_json(R"({"a": "\"\\\/\b\f\n\r\t\u00e4\ud83d\ude00"})"),
                ElementsAre(Pair("a", "\"\\/\b\f\n\r\tä😀")));
    EXPECT_THAT(headers_from_json(R"({"a": {"b": ["}", 1]}, "c": "x"})"),
                ElementsAre(Pair("a", R"({"b": ["}", 1]})"), Pair("c", "x")));
}

TEST(ClientText, HeadersSurviveARoundTrip) {
    const std::map<std::string, std::string> headers{{"", "\""}, {"a b", "ä\t\x01"}, {"z", "{}"}};
    EXPECT_EQ(headers_from_json(*headers_to_json(headers)), headers);
}

// Reading ends for any input.
TEST(ClientText, ReadingBrokenJsonEnds) {
    const std::string whole = R"({"a": "\u00e4\ud83d\ude00", "b": [1, {"c": "]"}], "d": 12})";
    for (std::size_t length = 0; length < whole.size(); length++) {
        headers_from_json(whole.substr(0, length));
        std::string changed = whole;
        changed[length] = '"';
        headers_from_json(changed);
    }
    EXPECT_THAT(headers_from_json("[1]"), IsEmpty());
}

}  // namespace
}  // namespace inbox
