// Events as the body of a publish request, read back by another library, and the limits of a
// request.
#include "sinks/pubsub/publish_request.hpp"

#include <gtest/gtest.h>

#include <openssl/evp.h>

#include <deque>

#include "net/json.hpp"
#include "sinks/pubsub/limits.hpp"
#include "unit/sample_event.hpp"

namespace outbox {
namespace {

std::string from_base64(const std::string& text) {
    std::string bytes(text.size(), '\0');
    const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                       reinterpret_cast<const unsigned char*>(text.data()),
                                       static_cast<int>(text.size()));
    const std::size_t padding = text.size() - (text.find_last_not_of('=') + 1);
    bytes.resize(length < 0 ? 0 : static_cast<std::size_t>(length) - padding);
    return bytes;
}

Json::Value messages(std::vector<Event*> events, EventFormat format = EventFormat::attributes) {
    PublishEncoder encoder(format, "my shop");
    std::string body;
    const std::optional<std::string> broken = encoder.encode(events, body);
    EXPECT_FALSE(broken) << *broken;
    const std::optional<Json::Value> request = parse_json(body);
    EXPECT_TRUE(request) << body;
    return request ? (*request)["messages"] : Json::Value();
}

Json::Value message(Event& event, EventFormat format = EventFormat::attributes) {
    return messages({&event}, format)[0];
}

std::string refusal(Event& event, EventFormat format = EventFormat::attributes) {
    std::string body;
    return PublishEncoder(format, "shop").encode(std::vector<Event*>{&event}, body).value_or("");
}

TEST(PublishRequest, HasThePayloadTheKeyAndAnAttributeForEverythingElse) {
    SampleEvent sample;
    sample.event.has_version = true;
    sample.event.version = -7;
    sample.event.schema_version = 3;
    sample.add("tenant", "a \"quoted\" \\ \xc3\xa4 one");
    sample.add("count", "5", Header::Kind::literal);
    sample.add("nothing", "", Header::Kind::null);
    const Json::Value sent = message(sample.event);
    EXPECT_EQ(from_base64(sent["data"].asString()), R"({"title": "Cats"})");
    EXPECT_EQ(sent["orderingKey"], "v1");
    Json::Value attributes;
    attributes["event_id"] = "00112233-4455-6677-8899-aabbccddeeff";
    attributes["event_type"] = "VideoUpdated";
    attributes["aggregate_type"] = "video";
    attributes["aggregate_id"] = "v1";
    attributes["version"] = "-7";
    attributes["schema_version"] = "3";
    attributes["occurred_at"] = "2023-11-14T22:13:20.123456Z";
    attributes["content_type"] = "application/json";
    attributes["tenant"] = "a \"quoted\" \\ \xc3\xa4 one";
    attributes["count"] = "5";
    EXPECT_EQ(sent["attributes"], attributes);
}

TEST(PublishRequest, OmitsMissingFields) {
    SampleEvent sample;
    sample.event.has_payload = false;
    sample.event.payload = "";
    sample.event.ordering_key = "";
    const Json::Value sent = message(sample.event);
    EXPECT_EQ(sent.getMemberNames(), std::vector<std::string>{"attributes"});
    EXPECT_FALSE(sent["attributes"].isMember("version"));
    EXPECT_FALSE(sent["attributes"].isMember("content_type"));
}

TEST(PublishRequest, AHeaderGivesWayToAnAttributeOfTheSameName) {
    SampleEvent sample;
    for (const char* name : {"event_id", "event_type", "aggregate_type", "aggregate_id", "version",
                             "schema_version", "occurred_at", "content_type"})
        sample.add(name, "not this");
    sample.add("Version", "another");
    const Json::Value attributes = message(sample.event)["attributes"];
    EXPECT_EQ(attributes["event_type"], "VideoUpdated");
    EXPECT_FALSE(attributes.isMember("version"));
    EXPECT_EQ(attributes["Version"], "another");
    for (const std::string& name : attributes.getMemberNames())
        EXPECT_NE(attributes[name], "not this") << name;
}

TEST(PublishRequest, HasMessagesInTheOrderOfTheirEvents) {
    std::deque<SampleEvent> samples(3);
    std::vector<Event*> events;
    std::vector<std::string> payloads{"", "a", std::string("\0\xff", 2)};
    for (std::size_t i = 0; i < samples.size(); i++) {
        samples[i].event.payload = payloads[i];
        events.push_back(&samples[i].event);
    }
    const Json::Value sent = messages(events);
    ASSERT_EQ(sent.size(), 3u);
    for (Json::ArrayIndex i = 0; i < 3; i++)
        EXPECT_EQ(from_base64(sent[i]["data"].asString()), payloads[i]);
}

TEST(PublishRequest, TraceContextHasNoPrefixInAnyFormat) {
    SampleEvent sample;
    sample.add("traceparent", "00-1-2-01");
    for (const EventFormat format :
         {EventFormat::attributes, EventFormat::binary, EventFormat::structured})
        EXPECT_EQ(message(sample.event, format)["attributes"]["traceparent"], "00-1-2-01");
}

TEST(PublishRequest, BinaryHasTheAttributesOfACloudEvent) {
    SampleEvent sample;
    sample.event.has_version = true;
    sample.event.version = 7;
    sample.event.aggregate_id = "a b";
    sample.add("tenant", "one two");
    sample.add("X-Plain", "y z");
    sample.add("nothing", "", Header::Kind::null);
    const Json::Value sent = message(sample.event, EventFormat::binary);
    EXPECT_EQ(from_base64(sent["data"].asString()), sample.event.payload);
    EXPECT_EQ(sent["orderingKey"], "v1");
    Json::Value attributes;
    attributes["ce-specversion"] = "1.0";
    attributes["ce-id"] = "00112233-4455-6677-8899-aabbccddeeff";
    attributes["ce-source"] = "/my%20shop/video";
    attributes["ce-type"] = "VideoUpdated";
    attributes["ce-subject"] = "a b";  // attributes are text: nothing is percent-encoded
    attributes["ce-time"] = "2023-11-14T22:13:20.123456Z";
    attributes["ce-partitionkey"] = "v1";
    attributes["ce-sequence"] = "42";
    attributes["ce-aggregateversion"] = "7";
    attributes["ce-schemaversion"] = "1";
    attributes["ce-topic"] = "video.events";
    attributes["ce-tenant"] = "one two";
    attributes["X-Plain"] = "y z";
    attributes["content-type"] = "application/json";
    EXPECT_EQ(sent["attributes"], attributes);
}

TEST(PublishRequest, StructuredHasACloudEventAsData) {
    SampleEvent sample;
    sample.add("tenant", "one");
    sample.add("X-Plain", "y");
    const Json::Value sent = message(sample.event, EventFormat::structured);
    Json::Value attributes;
    attributes["content-type"] = "application/cloudevents+json; charset=UTF-8";
    attributes["X-Plain"] = "y";
    EXPECT_EQ(sent["attributes"], attributes);
    EXPECT_EQ(sent["orderingKey"], "v1");
    const std::optional<Json::Value> document = parse_json(from_base64(sent["data"].asString()));
    ASSERT_TRUE(document);
    EXPECT_EQ((*document)["id"], "00112233-4455-6677-8899-aabbccddeeff");
    EXPECT_EQ((*document)["tenant"], "one");
    EXPECT_EQ((*document)["data"]["title"], "Cats");
}

TEST(PublishRequest, SizeIsEstimatedClosely) {
    for (const std::size_t size : {0, 200, 100'000}) {
        SampleEvent sample;
        const std::string payload(size, 'x');
        sample.event.payload = payload;
        sample.add("tenant", "one");
        std::string body;
        PublishEncoder(EventFormat::attributes, "shop")
            .encode(std::vector<Event*>{&sample.event}, body);
        const auto estimate = static_cast<double>(PublishEncoder::size_of(sample.event));
        EXPECT_NEAR(estimate, static_cast<double>(body.size()), 200) << size;
    }
}

// -- limits -----------------------------------------------------------------------------------

TEST(PublishLimits, BoundTheOrderingKey) {
    SampleEvent sample;
    const std::string key(1025, 'k');
    sample.event.ordering_key = std::string_view(key).substr(1);
    EXPECT_EQ(refusal(sample.event), "");
    sample.event.ordering_key = key;
    EXPECT_EQ(refusal(sample.event), "ordering key has 1025 bytes; Pub/Sub takes 1024");
}

TEST(PublishLimits, BoundAttributes) {
    const std::string value(1025, 'v'), name(257, 'n');
    SampleEvent fits;
    fits.add(std::string_view(name).substr(1), std::string_view(value).substr(1));
    EXPECT_EQ(refusal(fits.event), "");
    SampleEvent long_value, long_name;
    long_value.add("tenant", value);
    EXPECT_EQ(refusal(long_value.event), "attribute \"tenant\" has 1025 bytes; Pub/Sub takes 1024");
    EXPECT_NE(refusal(long_value.event, EventFormat::binary), "");
    EXPECT_EQ(refusal(long_value.event, EventFormat::structured), "");  // it is in the document
    long_name.add(name, "v");
    EXPECT_EQ(refusal(long_name.event), "name of an attribute has 257 bytes; Pub/Sub takes 256");
}

TEST(PublishLimits, RefuseReservedNames) {
    SampleEvent sample;
    sample.add("Goog", "v");
    EXPECT_EQ(refusal(sample.event), "");
    sample.add("google-id", "v");
    EXPECT_EQ(refusal(sample.event),
              "attribute \"google-id\" has a reserved name: it starts with \"goog\"");
}

TEST(PublishLimits, BoundTheNumberOfAttributes) {
    SampleEvent sample;  // it has seven attributes of pg_outbox: there is no version
    std::deque<std::string> names;
    for (int i = 0; i < 93; i++)
        sample.add(names.emplace_back("h" + std::to_string(i)), "v");
    EXPECT_EQ(refusal(sample.event), "");
    sample.add("one-more", "v");
    EXPECT_EQ(refusal(sample.event), "message has 101 attributes; Pub/Sub takes 100");
}

TEST(PublishLimits, BoundTheWholeMessage) {
    MessageLimits exact;
    exact.data(10'000'000 - MessageLimits::overhead - 5);
    exact.ordering_key("12345");
    EXPECT_FALSE(exact.broken());
    exact.attribute("", "");
    EXPECT_TRUE(exact.broken());

    SampleEvent sample;
    const std::string payload(10'000'000, 'x');
    sample.event.payload = std::string_view(payload).substr(1'000);
    EXPECT_EQ(refusal(sample.event), "");
    sample.event.payload = payload;
    for (EventFormat format :
         {EventFormat::attributes, EventFormat::binary, EventFormat::structured})
        EXPECT_NE(refusal(sample.event, format).find("bytes; Pub/Sub takes 10000000"),
                  std::string::npos);
}

// The overhead of protobuf, counted from the wire format.
TEST(PublishLimits, OverheadIsEnoughForWhatProtobufAdds) {
    const auto field = [](std::size_t size) {  // tag, length, content
        std::size_t length = 1;
        for (std::size_t left = size >> 7; left > 0; left >>= 7)
            length++;
        return 1 + length + size;
    };
    const std::size_t attribute =
        field(field(MessageLimits::max_attribute_name) + field(MessageLimits::max_attribute_value));
    EXPECT_LE(attribute, MessageLimits::max_attribute_name + MessageLimits::max_attribute_value +
                             MessageLimits::attribute_overhead);
    const std::size_t topic = std::string_view("projects//topics/").size() + 30 + 255;
    const std::size_t data = MessageLimits::max_size;
    EXPECT_LE(field(topic) + field(field(data) + field(1024)),
              data + 1024 + MessageLimits::overhead);
}

TEST(PublishLimits, OneEventAboveALimitRefusesTheBatch) {
    SampleEvent good, bad;
    bad.add("goog", "v");
    std::string body;
    EXPECT_TRUE(PublishEncoder(EventFormat::attributes, "shop")
                    .encode(std::vector<Event*>{&good.event, &bad.event}, body));
}

}  // namespace
}  // namespace outbox
