// Events as records: value and headers.
#include "sinks/kafka/record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "sinks/kafka/topic_name.hpp"
#include "unit/sample_event.hpp"

namespace outbox {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Encoded {
    std::string key;
    std::optional<std::string> value;
    Headers headers;
};

Encoded encoded(const RecordForm& form, const Event& event) {
    RecordEncoder encoder(form, "shop");
    Encoded result;
    result.key = encoder.key(event);
    const auto value = encoder.encode(event, [&](std::string_view name, std::string_view text) {
        result.headers.emplace_back(name, text);
    });
    if (value)
        result.value = std::string(*value);
    return result;
}

TEST(Record, HasTheAttributesUnderTheirNames) {
    SampleEvent sample;
    sample.event.version = 7;
    sample.event.has_version = true;
    sample.add("tenant", "t1");
    sample.add("event_id", "another");
    const Encoded record = encoded({EventFormat::attributes}, sample.event);
    EXPECT_EQ(record.value, R"({"title": "Cats"})");
    EXPECT_THAT(
        record.headers,
        ElementsAre(Pair("event_id", "00112233-4455-6677-8899-aabbccddeeff"),
                    Pair("event_type", "VideoUpdated"), Pair("aggregate_type", "video"),
                    Pair("aggregate_id", "v1"), Pair("version", "7"), Pair("schema_version", "1"),
                    Pair("occurred_at", "2023-11-14T22:13:20.123456Z"),
                    Pair("content_type", "application/json"), Pair("tenant", "t1")));
}

std::vector<NamedAttribute> named(std::string_view list) {
    return parse_named_attributes("headers", list).value();
}

TEST(Record, HasChosenAttributesUnderChosenNames) {
    SampleEvent sample;
    sample.add("tenant", "t1");
    sample.add("eventType", "another");
    sample.add("event_id", "not an attribute here");
    const Encoded record =
        encoded({.headers = named(" event_id:id,event_type : eventType,version")}, sample.event);
    EXPECT_THAT(record.headers, ElementsAre(Pair("id", "00112233-4455-6677-8899-aabbccddeeff"),
                                            Pair("eventType", "VideoUpdated"), Pair("tenant", "t1"),
                                            Pair("event_id", "not an attribute here")));
}

TEST(Record, RefusesListsOfAttributesThatMeanNothing) {
    for (const char* list :
         {"", "id", "event_id:", ":id", "event_id,", "event_id:id,version:id", "version,version"})
        EXPECT_FALSE(parse_named_attributes("headers", list)) << list;
}

TEST(Record, HasAKeyInQuotes) {
    SampleEvent sample;
    sample.event.ordering_key = "a \"b\"";
    EXPECT_EQ(encoded({.json_key = true}, sample.event).key, R"("a \"b\"")");
    EXPECT_EQ(encoded({}, sample.event).key, "a \"b\"");
    sample.event.ordering_key = "";
    EXPECT_EQ(encoded({.json_key = true}, sample.event).key, "");
}

TEST(Record, HasJsonWithoutWhiteSpace) {
    SampleEvent sample;
    sample.event.payload = "{\"a \\\" b\": [1, 2],\n\t\"c\\\\\": \" \"}";
    EXPECT_EQ(encoded({.json_payload = JsonPayload::compact}, sample.event).value,
              R"({"a \" b":[1,2],"c\\":" "})");
    sample.event.content_type = "text/plain";
    EXPECT_EQ(encoded({.json_payload = JsonPayload::compact}, sample.event).value,
              sample.event.payload);
}

TEST(Record, HasJsonInAString) {
    SampleEvent sample;
    EXPECT_EQ(encoded({.json_payload = JsonPayload::string}, sample.event).value,
              R"("{\"title\": \"Cats\"}")");
    sample.event.has_payload = false;
    EXPECT_EQ(encoded({.json_payload = JsonPayload::string}, sample.event).value, std::nullopt);
}

TEST(Record, FollowsTheBindingOfCloudEventsInBinaryMode) {
    SampleEvent sample;
    sample.add("tenant", "t1");
    sample.add("x-tenant", "t2");
    sample.add("traceparent", "00-1-2-01");
    const Encoded record = encoded({EventFormat::binary}, sample.event);
    EXPECT_EQ(record.value, R"({"title": "Cats"})");
    for (const auto& [name, value] : Headers{{"ce_specversion", "1.0"},
                                             {"ce_id", "00112233-4455-6677-8899-aabbccddeeff"},
                                             {"ce_source", "/shop/video"},
                                             {"ce_type", "VideoUpdated"},
                                             {"ce_subject", "v1"},
                                             {"ce_partitionkey", "v1"},
                                             {"ce_tenant", "t1"},
                                             {"x-tenant", "t2"},
                                             {"ce_traceparent", "00-1-2-01"},
                                             {"traceparent", "00-1-2-01"},
                                             {"content-type", "application/json"}})
        EXPECT_THAT(record.headers, Contains(Pair(name, value)));
}

TEST(Record, IsADocumentInStructuredMode) {
    SampleEvent sample;
    sample.add("x-tenant", "t2");
    sample.add("traceparent", "00-1-2-01");
    const Encoded record = encoded({EventFormat::structured}, sample.event);
    EXPECT_THAT(record.value.value_or(""), HasSubstr(R"("data":{"title": "Cats"})"));
    EXPECT_THAT(record.headers,
                ElementsAre(Pair("content-type", "application/cloudevents+json; charset=UTF-8"),
                            Pair("x-tenant", "t2"), Pair("traceparent", "00-1-2-01")));
}

TEST(Record, WithoutPayloadIsATombstone) {
    SampleEvent sample;
    sample.event.payload = {};
    EXPECT_EQ(encoded({EventFormat::attributes}, sample.event).value, "");
    sample.event.has_payload = false;
    EXPECT_EQ(encoded({EventFormat::attributes}, sample.event).value, std::nullopt);
    EXPECT_EQ(encoded({EventFormat::binary}, sample.event).value, std::nullopt);
    EXPECT_NE(encoded({EventFormat::structured}, sample.event).value, std::nullopt);
}

TEST(TopicName, IsOneThatBrokersTake) {
    for (const std::string& good : {std::string("a"), std::string("video.events"),
                                    std::string("A-b_c.9"), std::string(249, 't')})
        EXPECT_EQ(invalid_topic_name(good), std::nullopt) << good;
    for (const std::string& bad :
         {std::string(), std::string("."), std::string(".."), std::string("a b"),
          std::string("a/b"), std::string("\xc3\xbc"), std::string(250, 't')})
        EXPECT_NE(invalid_topic_name(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace outbox
