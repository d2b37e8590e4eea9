#include "core/percent.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

TEST(PercentEncoding, LeavesUnreservedCharacters) {
    std::string out = "=";
    append_percent_encoded(out, "aZ09-._~/ %\u00fc");
    EXPECT_EQ(out, "=aZ09-._~%2F%20%25%C3%BC");
}

TEST(PercentEncoding, OfAUrlIsThatOfItsBytesBeyondAscii) {
    EXPECT_EQ(ascii_url("/gr\u00fc\u00df/%41?a=\u00e4&b"), "/gr%C3%BC%C3%9F/%41?a=%C3%A4&b");
    EXPECT_EQ(ascii_url(""), "");
    EXPECT_EQ(ascii_url("https://h\u00fc/\u00fc"), "https://h\u00fc/%C3%BC");
    EXPECT_EQ(ascii_url("https://h?\u00fc"), "https://h?%C3%BC");
    EXPECT_EQ(ascii_url("https://h\u00fc"), "https://h\u00fc");
    EXPECT_EQ(ascii_url("/a://\u00fc"), "/a://%C3%BC");
    EXPECT_EQ(ascii_url("//\u00fc"), "//%C3%BC");
}

TEST(PercentDecoding, TakesHexDigitsOfBothCases) {
    EXPECT_EQ(percent_decoded(""), "");
    EXPECT_EQ(percent_decoded("a+b"), "a+b");
    EXPECT_EQ(percent_decoded("%41%2f%2F%c3%BC"), "A//\u00fc");
    EXPECT_EQ(percent_decoded("%2541"), "%41") << "once, and not again";
}

TEST(PercentDecoding, RefusesMalformedTextAndZeroBytes) {
    for (const char* text : {"%", "%4", "a%4", "%4g", "%g4", "%%41", "% 41", "%00", "a%00b"})
        EXPECT_EQ(percent_decoded(text), std::nullopt) << text;
}

}  // namespace
}  // namespace outbox
