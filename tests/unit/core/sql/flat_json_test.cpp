// The headers of events, as the server prints a jsonb.
#include "core/sql/flat_json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace outbox::sql {
namespace {

std::string unescaped(std::string_view text) {
    std::string out;
    append_unescaped(out, text);
    return out;
}

TEST(FlatJson, NestedValuesReadAsNull) {
    std::vector<FlatMember> members;
    ASSERT_TRUE(read_flat_json(R"({"a": {"x": ["}", 1]}, "b": [], "c": "d"})", members));
    ASSERT_EQ(members.size(), 3u);
    EXPECT_EQ(members[0].kind, Header::Kind::null);
    EXPECT_EQ(members[1].kind, Header::Kind::null);
    EXPECT_EQ(members[2].value, "d");
}

TEST(FlatJson, WhatIsNotAnObjectIsRefused) {
    std::vector<FlatMember> members;
    EXPECT_TRUE(read_flat_json("{}", members));
    const std::string whole = R"({"a": "\"b", "n": -1.5e3, "t": true})";
    EXPECT_TRUE(read_flat_json(whole, members));
    for (std::size_t size = 0; size < whole.size(); size++)
        EXPECT_FALSE(read_flat_json(std::string_view(whole).substr(0, size), members)) << size;
    for (const char* text : {"[]", "1", "{} {}", "{\"a\"}", "{\"a\": }", "{a: 1}"})
        EXPECT_FALSE(read_flat_json(text, members)) << text;
}

TEST(FlatJson, AtMostMaxMembersAreKept) {
    std::vector<FlatMember> members;
    ASSERT_TRUE(read_flat_json(R"({"a": 1, "b": 2, "c": 3})", members, 2));
    EXPECT_EQ(members.size(), 2u);
}

TEST(FlatJson, Escapes) {
    EXPECT_EQ(unescaped(R"(plain)"), "plain");
    EXPECT_EQ(unescaped(R"(\"\\\/\b\f\n\r\t)"), "\"\\/\b\f\n\r\t");
    EXPECT_EQ(unescaped(R"(\u00e4\u20ac)"), "ä€");
    EXPECT_EQ(unescaped(R"(\ud83d\ude00!)"), "😀!");
    EXPECT_EQ(unescaped(R"(\ud83d!)"), "\xEF\xBF\xBD!") << "half of a pair";
    EXPECT_EQ(unescaped("end\\"), "end");
    EXPECT_EQ(unescaped("\\u12"), "12") << "not a code";
}

}  // namespace
}  // namespace outbox::sql
