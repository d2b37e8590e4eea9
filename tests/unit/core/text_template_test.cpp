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

TEST(TextTemplate, RoutesHaveFieldsThatDifferInEachEvent) {
    Event one = event;
    one.aggregate_id = "42";
    one.ordering_key = "k";
    Result<TextTemplate> parsed =
        TextTemplate::parse("{topic}/{aggregate_id}/{ordering_key}", TextTemplate::Kind::route);
    ASSERT_TRUE(parsed);
    std::string out;
    parsed.value().append_to(out, one, "shop");
    EXPECT_EQ(out, "video.events/42/k");
    EXPECT_FALSE(parsed.value().is_constant());
    EXPECT_FALSE(parsed.value().needs_only_topic());
    const Error refused = TextTemplate::parse("{aggregate_id}").error();
    EXPECT_EQ(refused.message, "There is no field \"{aggregate_id}\"");
    EXPECT_EQ(refused.hint, "Fields are: {topic}, {aggregate_type}, {event_type}, {database}.");
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
