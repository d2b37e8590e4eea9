#include "core/header_lines.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace outbox {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(HeaderLines, AreReadWithoutTheBlanksAroundThem) {
    const auto parsed = parse_header_lines("X-Api-Key: a b:c\r\n\n  x-tenant:7  ");
    ASSERT_TRUE(parsed);
    ASSERT_EQ(parsed.value().size(), 2u);
    EXPECT_EQ(parsed.value()[0].name, "X-Api-Key");
    EXPECT_EQ(parsed.value()[0].value, "a b:c");
    EXPECT_EQ(parsed.value()[1].name, "x-tenant");
    EXPECT_EQ(parsed.value()[1].value, "7");
}

TEST(HeaderLines, ErrorsNameTheLineAndNothingOfIt) {
    const std::string long_one = "a: b\nsecret: " + std::string(8200, 's');
    for (const char* text :
         {"", "\n", "secret", "a: b\nsecret", ": secret", "secret:", "secret :x", "a: b\nA: secret",
          "a: sec\x01ret", "a: secret\rX: y", "Host: secret", "content-LENGTH: 3secret",
          "Transfer-Encoding: secret", "ce-id: secret", "se cret: x", long_one.c_str()}) {
        const auto parsed = parse_header_lines(text);
        ASSERT_FALSE(parsed) << text;
        EXPECT_THAT(parsed.error().message, HasSubstr("Line "));
        EXPECT_THAT(parsed.error().message, Not(HasSubstr("secret")));
    }
}

}  // namespace
}  // namespace outbox
