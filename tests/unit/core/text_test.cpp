#include "core/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <limits>

namespace outbox {
namespace {

constexpr std::int64_t second = 1'000'000;

std::string timestamp(std::int64_t unix_micros) {
    std::string text;
    append_timestamp(text, unix_micros);
    return text;
}

TEST(Timestamp, StartsAtTheEpoch) {
    EXPECT_EQ(timestamp(0), "1970-01-01T00:00:00.000000Z");
    EXPECT_EQ(timestamp(1), "1970-01-01T00:00:00.000001Z");
}

TEST(Timestamp, KeepsMicroseconds) {
    EXPECT_EQ(timestamp(1'769'854'830 * second + 123'456), "2026-01-31T10:20:30.123456Z");
    EXPECT_EQ(timestamp(1'769'854'830 * second + 999'999), "2026-01-31T10:20:30.999999Z");
}

TEST(Timestamp, CountsBackwardsBefore1970) {
    EXPECT_EQ(timestamp(-1), "1969-12-31T23:59:59.999999Z");
    EXPECT_EQ(timestamp(-second), "1969-12-31T23:59:59.000000Z");
    EXPECT_EQ(timestamp(-86'400 * second), "1969-12-31T00:00:00.000000Z");
    EXPECT_EQ(timestamp(-86'400 * second - 1), "1969-12-30T23:59:59.999999Z");
    EXPECT_EQ(timestamp(-11'644'473'600 * second), "1601-01-01T00:00:00.000000Z");
}

TEST(Timestamp, KnowsLeapYears) {
    EXPECT_EQ(timestamp(951'782'400 * second), "2000-02-29T00:00:00.000000Z");
    EXPECT_EQ(timestamp(1'709'164'800 * second), "2024-02-29T00:00:00.000000Z");
    EXPECT_EQ(timestamp(1'677'628'800 * second), "2023-03-01T00:00:00.000000Z");
    EXPECT_EQ(timestamp(4'107'542'400 * second), "2100-03-01T00:00:00.000000Z");  // not a leap year
    EXPECT_EQ(timestamp(4'107'542'400 * second - 1), "2100-02-28T23:59:59.999999Z");
    // Not a leap year.
    EXPECT_EQ(timestamp(-2'203'891'200 * second), "1900-03-01T00:00:00.000000Z");
}

TEST(Timestamp, AgreesWithTheCLibraryFromYear1To9999) {
    constexpr std::int64_t first = -62'135'596'800, last = 253'402'300'799;
    constexpr std::int64_t stride = 86'400 * 97 + 12'345;  // prime to the week and the year
    for (std::int64_t t = first; t <= last; t += stride) {
        const std::time_t time = t;
        std::tm parts{};
        ASSERT_NE(gmtime_r(&time, &parts), nullptr);
        char expected[80];
        std::snprintf(expected, sizeof expected, "%04d-%02d-%02dT%02d:%02d:%02d.000007Z",
                      parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                      parts.tm_min, parts.tm_sec);
        ASSERT_EQ(timestamp(t * second + 7), expected) << "at " << t;
    }
    EXPECT_EQ(timestamp(first * second), "0001-01-01T00:00:00.000000Z");
    EXPECT_EQ(timestamp(last * second + 999'999), "9999-12-31T23:59:59.999999Z");
}

// PostgreSQL's timestamps reach the year 294276. RFC 3339 has no form for such years, but a long
// year is better than a wrong one.
TEST(Timestamp, IsAppended) {
    std::string text = "at ";
    append_timestamp(text, 0);
    EXPECT_EQ(text, "at 1970-01-01T00:00:00.000000Z");
}

TEST(UuidText, IsWrittenAsPostgresqlPrintsIt) {
    const Uuid uuid{0x01, 0x8f, 0x00, 0xab, 0xcd, 0xef, 0x70, 0x12,
                    0x8a, 0xbc, 0xde, 0xf0, 0x12, 0x34, 0x56, 0xff};
    std::string text = "id ";
    append_uuid(text, uuid);
    EXPECT_EQ(text, "id 018f00ab-cdef-7012-8abc-def0123456ff");
}

TEST(UuidText, KeepsZeros) {
    std::string text;
    append_uuid(text, Uuid{});
    EXPECT_EQ(text, "00000000-0000-0000-0000-000000000000");
}

TEST(IntegerText, IsReadOnlyWhenItIsTheWholeText) {
    EXPECT_EQ(parse_integer("0"), 0);
    EXPECT_EQ(parse_integer("-17"), -17);
    EXPECT_EQ(parse_integer("007"), 7);
    for (const char* text : {"", " 1", "1 ", "1x", "x", "+1", "1.0", "0x10", "1e3", "-", "--1"})
        EXPECT_EQ(parse_integer(text), std::nullopt) << '"' << text << '"';
}

TEST(IntegerText, ReachesFromTheLowestToTheHighestAndNotFurther) {
    EXPECT_EQ(parse_integer("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
    EXPECT_EQ(parse_integer("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(parse_integer("9223372036854775808"), std::nullopt);
    EXPECT_EQ(parse_integer("-9223372036854775809"), std::nullopt);
}

TEST(IntegerText, IsAppended) {
    std::string text = "n=";
    append_integer(text, std::numeric_limits<std::int64_t>::min());
    text += ',';
    append_integer(text, 0);
    EXPECT_EQ(text, "n=-9223372036854775808,0");
}

TEST(JsonString, EscapesWhatWouldEndOrBreakIt) {
    std::string text;
    append_json_string(text, std::string_view("a\"b\\c\n\t\x01\x1f\0d", 11));
    EXPECT_EQ(text, "\"a\\\"b\\\\c\\u000a\\u0009\\u0001\\u001f\\u0000d\"");
}

TEST(JsonString, LeavesUtf8AsItIs) {
    std::string text = "x";
    append_json_string(text, "ünïcödé 🎬 / \x7f");
    EXPECT_EQ(text, "x\"ünïcödé 🎬 / \x7f\"");
}

TEST(JsonString, CanBeEmpty) {
    std::string text;
    append_json_string(text, "");
    EXPECT_EQ(text, "\"\"");
}

TEST(Trim, TakesBlanksFromBothEnds) {
    EXPECT_EQ(trim(" \t\r\n a b \n"), "a b");
    EXPECT_EQ(trim("ab"), "ab");
    EXPECT_EQ(trim(" \n "), "");
    EXPECT_EQ(trim(""), "");
}

TEST(EqualIgnoringCase, FoldsAsciiLettersOnly) {
    EXPECT_TRUE(equal_ignoring_case("Content-Type", "content-tYPE"));
    EXPECT_TRUE(equal_ignoring_case("", ""));
    EXPECT_FALSE(equal_ignoring_case("ab", "abc"));
    EXPECT_FALSE(equal_ignoring_case("ab", "ac"));
    EXPECT_FALSE(equal_ignoring_case("[", "{"));  // 0x20 apart, as letters are
    EXPECT_FALSE(equal_ignoring_case("Ä", "ä"));
}

TEST(Text, PrintableTextIsOneLineOfVisibleCharacters) {
    EXPECT_EQ(printable(""), "");
    EXPECT_EQ(printable(" \r\n plain text \n"), "plain text");
    EXPECT_EQ(printable("a\nb\rc\td\x1b[2J\x7f."), "a b c d [2J .");
    EXPECT_EQ(printable("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
              "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    EXPECT_EQ(printable("a\xc2\x9b"
                        "31m\xe2\x80\xae\xe2\x81\xa6\xe2\x80\xa8\xef\xbb\xbfz"),
              "a 31m    z");
    EXPECT_EQ(printable("\xff\xc3(\xed\xa0\x80"),
              "?"
              "?("
              "?"
              "?"
              "?");
    EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a b");
    EXPECT_EQ(printable(std::string(5000, 'x')).size(), max_printable);
    EXPECT_EQ(printable("abc\xe2\x82\xac", 5), "abc") << "no half of a character";
}

TEST(Text, JsonStringsHoldOnlyCharacters) {
    std::string out;
    append_json_string(out, "a\xff\"\xe2\"b\xc3\xa9");
    EXPECT_EQ(out, "\"a\xef\xbf\xbd\\\"\xef\xbf\xbd\\\"b\xc3\xa9\"");
}

}  // namespace
}  // namespace outbox
