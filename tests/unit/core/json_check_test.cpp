// Bytes that may become a part of a JSON document, and bytes that may not.
#include "core/json_check.hpp"

#include <gtest/gtest.h>

#include <string>

namespace outbox {
namespace {

TEST(JsonCheck, TakesEveryKindOfValue) {
    for (const char* text : {"{}", "[]", "null", "true", "false", "0", "-0", "1", "-12.50e+3",
                             "1E9", "1e999999", "\"\"", " \t\r\n1 \n", "{\"a\":1}",
                             "{ \"a\" : [ 1 , { \"b\" : null } ] , \"c\" : \"d\" }", "[[],{},[{}]]",
                             "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83D\"", "\"caf\xc3\xa9\"",
                             "{\"a\":{\"b\":[1,2,{\"c\":[]}]},\"d\":2}"})
        EXPECT_TRUE(is_json_value(text)) << text;
}

TEST(JsonCheck, RefusesEverythingElse) {
    for (const char* text : {"",
                             " ",
                             "{",
                             "}",
                             "[",
                             "]",
                             "[1",
                             "[1,",
                             "[1,]",
                             "[,1]",
                             "{\"a\"}",
                             "{\"a\":}",
                             "{\"a\":1,}",
                             "{a:1}",
                             "{1:1}",
                             "{\"a\":1 \"b\":2}",
                             "[1 2]",
                             "[}",
                             "{]",
                             "[1}",
                             "{\"a\":1]",
                             "1 2",
                             "1,2",
                             "{}{}",
                             "1},{\"b\":2",
                             "]",
                             "nul",
                             "nulll",
                             "True",
                             "01",
                             "+1",
                             "1.",
                             ".1",
                             "1e",
                             "1e+",
                             "-",
                             "0x1",
                             "NaN",
                             "'a'",
                             "\"",
                             "\"a",
                             "\"\\\"",
                             "\"\\x\"",
                             "\"\\u12\"",
                             "\"\\u12g4\"",
                             "\"\n\"",
                             "\"\x01\"",
                             "\"\xff\"",
                             "\"\xc3\"",
                             "\"\xed\xa0\x80\"",
                             "\xef\xbb\xbf{}",
                             "{}//",
                             "/**/{}",
                             "[1]\x0c"})
        EXPECT_FALSE(is_json_value(text)) << text;
    EXPECT_FALSE(is_json_value(std::string_view("1\0", 2)));
}

TEST(JsonCheck, LimitsTheDepth) {
    const auto nested = [](int levels) {
        return std::string(static_cast<std::size_t>(levels), '[') + "1" +
               std::string(static_cast<std::size_t>(levels), ']');
    };
    EXPECT_TRUE(is_json_value(nested(1000)));
    EXPECT_FALSE(is_json_value(nested(1001)));
    EXPECT_FALSE(is_json_value(std::string(1'000'000, '[')));
    EXPECT_FALSE(is_json_value(std::string(1'000'000, '{')));
}

}  // namespace
}  // namespace outbox
