// Texts that are content types, and those that promise JSON.
#include "core/content_type.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

bool promises_json(std::string_view text) {
    const auto type = ContentType::parse(text);
    return type && type->is_json();
}

TEST(ContentType, PromisesJson) {
    for (const char* text :
         {"application/json", "Application/JSON", "application/json; charset=utf-8",
          "application/json ; charset=utf-8", "application/json\t;a=b",
          "application/json;a=\"b;c\"", "application/vnd.shop+json", "application/cloudevents+JSON",
          "a/b+json;x=y"})
        EXPECT_TRUE(promises_json(text)) << text;
}

TEST(ContentType, PromisesNoJson) {
    for (const char* text :
         {"text/plain", "application/jsonp", "application/x-json", "text/json", "application/+json",
          "application/json-seq", "application/octet-stream;type=\"application/json\""}) {
        EXPECT_TRUE(ContentType::parse(text)) << text;
        EXPECT_FALSE(promises_json(text)) << text;
    }
}

TEST(ContentType, IsRefusedWhenTwoReadersCouldDisagree) {
    for (const char* text : {"",
                             "json",
                             "/",
                             "a/",
                             "/b",
                             " application/json",
                             "application/json ",
                             "application /json",
                             "application/ json",
                             "application/json;",
                             "application/json; ",
                             "application/json;;a=b",
                             "application/json;a",
                             "application/json;a=",
                             "application/json;=b",
                             "application/json;a=b c",
                             "application/json;a=\"b",
                             "application/json;a=\"b\\",
                             "application/json;a=\"b\"c",
                             "application/json, text/plain",
                             "application/json\r\nX: y",
                             "application/json\n",
                             "application/json;a=\"\r\"",
                             "application/j\xc3\xb6n",
                             "a/b/c"})
        EXPECT_FALSE(ContentType::parse(text)) << text;
    EXPECT_FALSE(ContentType::parse(std::string_view("a/b\0", 4)));
}

}  // namespace
}  // namespace outbox
