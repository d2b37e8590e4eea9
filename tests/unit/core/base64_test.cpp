#include "core/base64.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

TEST(Base64Decoding, TakesEitherAlphabet) {
    EXPECT_EQ(base64_decoded(""), "");
    EXPECT_EQ(base64_decoded("aGk="), "hi");
    EXPECT_EQ(base64_decoded("aGk"), "hi");
    EXPECT_EQ(base64_decoded("++//"), base64_decoded("--__"));
    EXPECT_EQ(base64_decoded("AP8Q"), std::string("\0\xff\x10", 3));
    for (const char* text : {"a", "aGk=a", "a Gk", "aGk\n"})
        EXPECT_EQ(base64_decoded(text), std::nullopt) << text;
}

TEST(Base64Decoding, DecodesEncodedText) {
    std::string bytes, text;
    for (int i = 0; i < 40; i++) {
        text.clear();
        append_base64(text, bytes);
        EXPECT_EQ(base64_decoded(text), bytes);
        bytes += static_cast<char>(i * 37);
    }
}

}  // namespace
}  // namespace outbox
