// Events as messages of MQTT, byte by byte, in each format; and texts that MQTT does not allow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sinks/mqtt/message.hpp"
#include "sinks/mqtt/packets.hpp"
#include "sinks/registry.hpp"
#include "unit/sample_event.hpp"
#include "unit/sinks/mqtt/scripted_broker.hpp"

namespace outbox {
namespace {

using testing::HasSubstr;

class MqttMessageTest : public testing::Test {
  protected:
    MqttMessage& message(std::vector<Option> options = {}) {
        options.push_back({"url", "mqtt://broker"});
        Destination destination = parse_destination("d", options, {}, {}).value();
        destination.source = "shop";
        options_ = mqtt_options(destination);
        return message_.emplace(*options_);
    }

    static std::string user(std::string_view name, std::string_view value) {
        return '\x26' + mqtt_text(name) + mqtt_text(value);
    }
    static std::string type(std::string_view type) { return '\x03' + mqtt_text(type); }

    SampleEvent sample_;
    std::optional<MqttOptions> options_;
    std::optional<MqttMessage> message_;
};

TEST_F(MqttMessageTest, AttributesAreUserProperties) {
    sample_.add("traceparent", "00-1-2-01");
    sample_.add("count", "3", Header::Kind::literal);
    sample_.add("gone", "", Header::Kind::null);
    MqttMessage& message = this->message({{"message_expiry", "258"}});
    ASSERT_EQ(message.assign(sample_.event), std::nullopt);
    EXPECT_EQ(message.topic(), "video.events");
    EXPECT_EQ(message.payload(), R"({"title": "Cats"})");
    EXPECT_EQ(message.properties(), std::string("\x02\0\0\1\2", 5) + type("application/json") +
                                        user("ordering_key", "v1") +
                                        user("event_id", "00112233-4455-6677-8899-aabbccddeeff") +
                                        user("event_type", "VideoUpdated") +
                                        user("aggregate_type", "video") +
                                        user("aggregate_id", "v1") + user("schema_version", "1") +
                                        user("occurred_at", "2023-11-14T22:13:20.123456Z") +
                                        user("traceparent", "00-1-2-01") + user("count", "3"));
}

TEST_F(MqttMessageTest, BinaryModeOfCloudEvents) {
    sample_.add("traceparent", "00-1-2-01");
    sample_.add("x-tenant", "a");
    MqttMessage& message = this->message({{"format", "binary"}});
    ASSERT_EQ(message.assign(sample_.event), std::nullopt);
    EXPECT_EQ(message.properties(), type("application/json") + user("specversion", "1.0") +
                                        user("id", "00112233-4455-6677-8899-aabbccddeeff") +
                                        user("source", "/shop/video") +
                                        user("type", "VideoUpdated") + user("subject", "v1") +
                                        user("time", "2023-11-14T22:13:20.123456Z") +
                                        user("partitionkey", "v1") + user("sequence", "42") +
                                        user("schemaversion", "1") + user("topic", "video.events") +
                                        user("traceparent", "00-1-2-01") + user("x-tenant", "a"));
}

TEST_F(MqttMessageTest, StructuredModeOfCloudEvents) {
    sample_.add("traceparent", "00-1-2-01");
    sample_.add("x-tenant", "a");
    MqttMessage& message = this->message({{"format", "structured"}});
    ASSERT_EQ(message.assign(sample_.event), std::nullopt);
    EXPECT_EQ(message.properties(), type("application/cloudevents+json; charset=UTF-8") +
                                        user("traceparent", "00-1-2-01") + user("x-tenant", "a"));
    EXPECT_THAT(std::string(message.payload()), HasSubstr(R"("data":{"title": "Cats"})"));
}

TEST_F(MqttMessageTest, TheTopicIsMadeFromATemplate) {
    MqttMessage& message = this->message({{"topic", "{database}/{aggregate_type}/{aggregate_id}"}});
    ASSERT_EQ(message.assign(sample_.event), std::nullopt);
    EXPECT_EQ(message.topic(), "shop/video/v1");
    sample_.event.aggregate_id = "a#b";
    EXPECT_TRUE(message.assign(sample_.event));
    for (const char* wild : {"a/#", "+/{topic}"}) {
        const std::optional<Error> error =
            validate_server_options({{"url", "mqtt://broker"}, {"topic", wild}});
        ASSERT_TRUE(error);
        EXPECT_EQ(error->message, "\"topic\" must not contain \"+\" or \"#\"");
    }
}

TEST(MqttOptionsTest, NoLoginIsCutOrAltered) {
    const auto refused = [](const std::string& option, const std::string& value) {
        const std::vector<Option> options{{"url", "mqtt://broker"}};
        const std::vector<Option> one{{option, value}};
        if (option == "client_id")
            return !parse_destination("d", {options[0], one[0]}, {}, {}).ok();
        return !parse_destination("d", options, one, {}).ok();
    };
    const std::string most(65'535, 'x');
    for (const char* option : {"user", "password", "client_id"}) {
        EXPECT_FALSE(refused(option, most)) << option;
        EXPECT_TRUE(refused(option, most + "x")) << option;
        EXPECT_TRUE(refused(option, "a\nb")) << option;
        // Binary data only as a password.
        for (const char* odd : {"\xff", "\xC2\x85", "\xEF\xBF\xBF"})
            EXPECT_EQ(refused(option, odd), option != std::string_view("password")) << option;
    }
}

TEST(MqttText, WhatIsNotAllowedIsReplaced) {
    const auto appended = [](std::string_view text) {
        std::string out;
        append_mqtt_text(out, text);
        EXPECT_EQ(is_mqtt_text(text), out.substr(2) == text);
        EXPECT_EQ(out.substr(0, 2), two(static_cast<int>(out.size() - 2)));
        return out.substr(2);
    };
    const std::string good = "a/b c.Größe 日本 𝄞 \xEF\xBF\xBD";
    EXPECT_EQ(appended(good), good);
    const std::string bad = "\xEF\xBF\xBD";
    EXPECT_EQ(appended(std::string_view("a\0b\tc\x7f", 6)), "a" + bad + "b" + bad + "c" + bad);
    EXPECT_EQ(appended("\xC2\x85\xC2\xA0"), bad + "\xC2\xA0");
    EXPECT_EQ(appended("\xEF\xBF\xBF\xEF\xB7\x90\xF0\x9F\xBF\xBE"), bad + bad + bad);
    EXPECT_EQ(appended("\xff\xC3(\xED\xA0\x80"), bad + bad + "(" + bad + bad + bad);
    EXPECT_FALSE(is_mqtt_text(std::string(70'000, 'x')));
    std::string out;
    append_mqtt_text(out, std::string(70'000, 'x'));
    EXPECT_EQ(out.size(), 65'537u);
}

TEST(MqttPackets, ALengthHasUpToFourBytes) {
    for (const std::size_t size : std::initializer_list<std::size_t>{
             0, 100, 127, 128, 16'383, 16'384, 2'097'151, 2'097'152}) {
        const std::string payload(size, 'x');
        const MqttPublish publish{.topic = "t", .properties = "", .payload = payload, .id = 7};
        std::string out;
        append_publish(out, publish);
        EXPECT_EQ(out.size(), size_of_publish(publish));
        EXPECT_TRUE(out.ends_with(payload));
    }
}

}  // namespace
}  // namespace outbox
