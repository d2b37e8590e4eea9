// Names made from events.
#include "core/text_template.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

std::string made(std::string_view text, const Event& event) {
    Result<TextTemplate> parsed = TextTemplate::parse(text);
    EXPECT_TRUE(parsed) << text;
    std::string out = "before ";
    parsed.value().append_to(out, event, "shop");
    return out;
}

const Event event = [] {
    Event made;
    made.topic = "video.events";
    made.aggregate_type = "video";
    made.event_type = "VideoUpdated";
    return made;
}();

TEST(TextTemplate, PutsFieldsIntoText) {
    EXPECT_EQ(made("{topic}", event), "before video.events");
    EXPECT_EQ(made("{database}-{aggregate_type}.{event_type}!", event),
              "before shop-video.VideoUpdated!");
    EXPECT_EQ(made("all", event), "before all");
    EXPECT_EQ(made("{topic}{topic}", event), "before video.eventsvideo.events");
}

TEST(TextTemplate, KnowsWhatItDependsOn) {
    const auto parsed = [](std::string_view text) { return TextTemplate::parse(text).value(); };
    EXPECT_TRUE(parsed("all-{database}").is_constant());
    EXPECT_FALSE(parsed("{topic}").is_constant());
    EXPECT_TRUE(parsed("{database}-{topic}").needs_only_topic());
    EXPECT_FALSE(parsed("{topic}-{event_type}").needs_only_topic());
    EXPECT_FALSE(parsed("{aggregate_type}").needs_only_topic());
    EXPECT_TRUE(parsed("{topic}.fifo").ends_with(".fifo"));
    EXPECT_FALSE(parsed(".fifo{topic}").ends_with(".fifo"));
    EXPECT_FALSE(TextTemplate().ends_with(""));
}

TEST(TextTemplate, RefusesMalformedTemplates) {
    for (const char* text :
         {"", "{", "}", "{topic", "topic}", "{}", "{Topic}", "{name}", "{{topic}}"})
        EXPECT_FALSE(TextTemplate::parse(text)) << text;
    EXPECT_EQ(TextTemplate::parse("{name}").error().message, "There is no field \"{name}\"");
}

}  // namespace
}  // namespace outbox
