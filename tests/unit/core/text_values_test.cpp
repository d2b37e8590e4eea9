// Texts for libpq: each one arrives as it is, or is refused.
#include "core/text_values.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

// Texts with each byte in them.
std::vector<std::string> texts_with_each_byte() {
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; byte++)
        texts.push_back(std::string("a") + static_cast<char>(byte) + "b");
    return texts;
}

TEST(TextValues, NoneIsCut) {
    for (const std::string& text : texts_with_each_byte()) {
        const std::vector<std::optional<std::string>> texts{"x", std::nullopt, text};
        const auto values = text_values(texts);
        ASSERT_EQ(values.has_value(), text[1] != '\0');
        if (!values)
            continue;
        EXPECT_EQ(values->at(1), nullptr);
        EXPECT_EQ(values->at(2), text);
    }
}

TEST(TextValues, NoConnectionParameterIsCut) {
    for (const std::string& text : texts_with_each_byte())
        for (const auto& parameter : {std::pair{std::string("password"), text}, {text, "x"}}) {
            const LibpqParameters parameters{{"host", "h"}, parameter};
            std::string failure;
            const auto texts = connection_texts(parameters, failure);
            ASSERT_EQ(texts.has_value(), text[1] != '\0') << failure;
            if (!texts) {
                EXPECT_NE(failure.find("has a zero byte"), failure.npos);
                continue;
            }
            EXPECT_EQ(texts->names.at(1), parameter.first);
            EXPECT_EQ(texts->values.at(1), parameter.second);
            EXPECT_EQ(texts->names.at(2), nullptr);
            EXPECT_EQ(texts->values.at(2), nullptr);
        }
}

}  // namespace
}  // namespace outbox
