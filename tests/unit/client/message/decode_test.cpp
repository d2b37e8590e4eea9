// Messages as events: those of pg_outbox's sinks, read back, and those of other senders.
#include "message/decode.hpp"

#include <gtest/gtest.h>

#include "core/base64.hpp"
#include "net/json.hpp"
#include "sinks/pubsub/publish_request.hpp"
#include "unit/sample_event.hpp"

namespace inbox {
namespace {

using Texts = std::map<std::string, std::string>;

const Time published = Time(std::chrono::microseconds(1'800'000'000'000'000));

Fallback fallback() {
    return {"pubsub://shop/billing", "17", "video", "", published};
}

Event decode(const Texts& attributes, const std::string& body = "") {
    return decode_message(attributes, body, fallback());
}

// Encodes an event as the sink does, and decodes it as a source does.
Event there_and_back(outbox::Event& event, outbox::EventFormat format) {
    outbox::PublishEncoder encoder(format, "my shop");
    std::string body;
    EXPECT_FALSE(encoder.encode(std::vector<outbox::Event*>{&event}, body));
    const Json::Value message = (*outbox::parse_json(body))["messages"][0];
    Texts attributes;
    for (const std::string& name : message["attributes"].getMemberNames())
        attributes[name] = message["attributes"][name].asString();
    Fallback known = fallback();
    known.ordering_key = message["orderingKey"].asString();
    const auto data = outbox::base64_decoded(message["data"].asString());
    EXPECT_TRUE(data);
    return decode_message(attributes, *data, known);
}

class RoundTrip : public testing::TestWithParam<outbox::EventFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, RoundTrip,
                         testing::Values(outbox::EventFormat::attributes,
                                         outbox::EventFormat::binary,
                                         outbox::EventFormat::structured));

TEST_P(RoundTrip, KeepsAllFields) {
    outbox::SampleEvent sample;
    sample.event.aggregate_type = "a b/c";
    sample.event.has_version = true;
    sample.event.version = -7;
    sample.event.schema_version = 3;
    sample.event.payload = R"({"b": 1.10, "a": 123456789012345678901234567890, "b": "ä\u00e4"})";
    sample.add("tenant", "one \"two\"");
    sample.add("X-Plain", "y z");
    const Event event = there_and_back(sample.event, GetParam());
    EXPECT_EQ(event.id, "00112233-4455-6677-8899-aabbccddeeff");
    EXPECT_EQ(event.aggregate_type, "a b/c");
    EXPECT_EQ(event.aggregate_id, "v1");
    EXPECT_EQ(event.type, "VideoUpdated");
    EXPECT_EQ(event.version, -7);
    EXPECT_EQ(event.schema_version, 3);
    EXPECT_EQ(event.ordering_key, "v1");
    EXPECT_EQ(event.content_type, "application/json");
    EXPECT_EQ(event.payload, sample.event.payload);
    EXPECT_EQ(event.occurred_at, Time(std::chrono::microseconds(1'700'000'000'123'456)));
    EXPECT_EQ(event.headers.at("tenant"), "one \"two\"");
    EXPECT_EQ(event.headers.at("X-Plain"), "y z");
    const bool cloud_event = GetParam() != outbox::EventFormat::attributes;
    EXPECT_EQ(event.topic, cloud_event ? "video.events" : "video");
    // Values without a field in Event are kept as headers.
    EXPECT_EQ(event.headers.size(), cloud_event ? 4u : 2u);
    if (cloud_event) {
        EXPECT_EQ(event.headers.at("source"), "/my%20shop/a%20b%2Fc");
        EXPECT_EQ(event.headers.at("sequence"), "42");
    }
}

TEST_P(RoundTrip, KeepsBinaryPayloadsAndOtherTypes) {
    outbox::SampleEvent sample;
    const std::string bytes("\0\xff\x10", 3);
    sample.event.payload = bytes;
    sample.event.content_type = "application/x-protobuf";
    const Event event = there_and_back(sample.event, GetParam());
    EXPECT_EQ(event.payload, bytes);
    EXPECT_EQ(event.content_type, "application/x-protobuf");
}

TEST_P(RoundTrip, DistinguishesAMissingFromAnEmptyPayload) {
    outbox::SampleEvent sample;
    sample.event.has_payload = false;
    sample.event.payload = "";
    EXPECT_EQ(there_and_back(sample.event, GetParam()).payload, std::nullopt);
    sample.event.has_payload = true;
    sample.event.content_type = "text/plain";
    EXPECT_EQ(there_and_back(sample.event, GetParam()).payload, "");
}

TEST_P(RoundTrip, KeepsTheSourceEventId) {
    outbox::SampleEvent sample;
    sample.event.has_source_event_id = true;
    sample.event.source_event_id = sample.event.event_id;
    const Event event = there_and_back(sample.event, GetParam());
    if (GetParam() == outbox::EventFormat::attributes)
        EXPECT_EQ(event.source_event_id, std::nullopt);  // the sink does not send it
    else
        EXPECT_EQ(event.source_event_id, "00112233-4455-6677-8899-aabbccddeeff");
}

// -------------------------------------------------------------------------------------------------
// Messages of other senders
// -------------------------------------------------------------------------------------------------

TEST(DecodeMessage, AnEventWithoutAnIdGetsAStableOne) {
    const Event event = decode({}, "hello");
    // python3 -c 'import uuid; print(uuid.uuid5(uuid.NAMESPACE_URL, "pubsub://shop/billing/17"))'
    EXPECT_EQ(event.id, "9f3c92bb-fc30-5477-a7b4-f29aee7ff885");
    EXPECT_EQ(event.id, decode({{"other", "attribute"}}).id);
    Fallback other = fallback();
    other.message_id = "18";
    EXPECT_NE(event.id, decode_message({}, "hello", other).id);
    EXPECT_EQ(event.payload, "hello");
    EXPECT_EQ(event.topic, "video");
    EXPECT_EQ(event.occurred_at, published);
    EXPECT_EQ(event.version, std::nullopt);
    EXPECT_EQ(event.schema_version, 1);
}

TEST(DecodeMessage, UnreadableTextsStayInTheHeaders) {
    const Texts attributes{{"event_id", "17"},
                           {"version", "7b"},
                           {"schema_version", "99999999999"},
                           {"occurred_at", "yesterday"}};
    const Event event = decode(attributes);
    EXPECT_EQ(event.headers, attributes);
    EXPECT_EQ(event.id, decode({}).id);
}

TEST(DecodeMessage, AnIdIsKnownInAnySpelling) {
    EXPECT_EQ(decode({{"event_id", "00112233-4455-6677-8899-AABBCCDDEEFF"}}).id,
              "00112233-4455-6677-8899-aabbccddeeff");
}

TEST(DecodeMessage, ACloudEventsIdCountsWithItsSource) {
    Texts attributes{{"ce-specversion", "1.0"}, {"ce-id", "1"}, {"ce-source", "//a/b"}};
    const Event one = decode(attributes);
    Fallback other = fallback();
    other.message_id = "18";
    EXPECT_EQ(one.id, decode_message(attributes, "", other).id);
    attributes["ce-source"] = "//a/c";
    EXPECT_NE(one.id, decode(attributes).id);
    EXPECT_EQ(one.id, decode({{"content-type", "application/cloudevents+json"}},
                             R"({"specversion": "1.0", "id": "1", "source": "//a/b"})")
                          .id);
}

TEST(DecodeMessage, ExtensionsBecomeHeaders) {
    const Event event =
        decode({{"content-type", "Application/CloudEvents+JSON; charset=utf-8"}, {"x", "y"}},
               R"({"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "n": 5, "b": true,
                   "nothing": null, "datacontenttype": "text/plain", "data": "a\nb"})");
    EXPECT_EQ(event.headers, (Texts{{"source", "/a"}, {"n", "5"}, {"b", "true"}, {"x", "y"}}));
    EXPECT_EQ(event.payload, "a\nb");
    EXPECT_EQ(event.content_type, "text/plain");
}

TEST(DecodeMessage, MembersStayAsTheyAreWritten) {
    const Event event =
        decode({{"content-type", "application/cloudevents+json"}},
               "{ \"specversion\" : \"1.0\" , \"id\":\"1\", \"o\" : { \"a,}\" : [ 1 , \"]\" ] } ,"
               " \"o\":2.50, \"data\" : {\"n\": 1.10, \"t\": \"\\\"}\\\\\"} } ");
    EXPECT_EQ(event.payload, "{\"n\": 1.10, \"t\": \"\\\"}\\\\\"}");
    EXPECT_EQ(event.headers.at("o"), "2.50");
}

TEST(DecodeMessage, AMalformedDocumentIsThePayload) {
    const std::string deep(100'000, '[');
    for (const std::string& body :
         {std::string("{"), std::string("[]"), std::string("{}"), std::string("\xef\xbb\xbf{}"),
          std::string(R"({"specversion": "1.0", "id": "1",})"),
          std::string(R"({"specversion": "1.0", "id": "1"}{})"),
          std::string(R"({"specversion": "1.0", "id": })"),
          std::string(R"({"specversion": "1.0", "id": "1" "x": 1})"),
          R"({"specversion": "1.0", "id": "1", "data": )" + deep, std::string()}) {
        const Event event = decode({{"content-type", "application/cloudevents+json"}}, body);
        EXPECT_EQ(event.payload, body);
        EXPECT_EQ(event.content_type, "application/cloudevents+json");
        EXPECT_EQ(event.id, decode({}).id);
    }
}

TEST(DecodeMessage, TextsAreValidForPostgreSql) {
    const Event event = decode({{"event_type", std::string("a\0b\xff", 4)}, {"\xc0\x80", "x"}});
    EXPECT_EQ(event.type,
              "a\xef\xbf\xbd"
              "b\xef\xbf\xbd");
    EXPECT_EQ(event.headers, (Texts{{"\xef\xbf\xbd\xef\xbf\xbd", "x"}}));
    const Event document = decode({{"content-type", "application/cloudevents+json"}},
                                  R"({"specversion": "1.0", "id": "1", "type": "\u0000\udc00"})");
    EXPECT_EQ(document.type.find('\0'), std::string::npos);
    EXPECT_TRUE(document.type.empty() || document.type.find("\xed\xb0\x80") == std::string::npos);
}

TEST(DecodeMessage, TheBrokersKeyTakesPrecedence) {
    Fallback known = fallback();
    known.ordering_key = "group";
    const Texts attributes{{"ce-specversion", "1.0"}, {"ce-id", "1"}, {"ce-partitionkey", "key"}};
    EXPECT_EQ(decode_message(attributes, "", known).ordering_key, "group");
    EXPECT_EQ(decode(attributes).ordering_key, "key");
}

// -------------------------------------------------------------------------------------------------
// Helpers
// -------------------------------------------------------------------------------------------------

TEST(ParseTime, TakesWhatRfc3339Allows) {
    const auto micros = [](std::string_view text) -> std::optional<std::int64_t> {
        const std::optional<Time> time = parse_time(text);
        return time ? std::optional(time->time_since_epoch().count()) : std::nullopt;
    };
    EXPECT_EQ(micros("1970-01-01T00:00:00Z"), 0);
    EXPECT_EQ(micros("2023-11-14T22:13:20.123456Z"), 1'700'000'000'123'456);
    EXPECT_EQ(micros("2023-11-14T22:13:20.123456789Z"), 1'700'000'000'123'456);
    EXPECT_EQ(micros("2023-11-14t22:13:20.1z"), 1'700'000'000'100'000);
    EXPECT_EQ(micros("2023-11-15T00:13:20+02:00"), 1'700'000'000'000'000);
    EXPECT_EQ(micros("2023-11-14T16:43:20-05:30"), 1'700'000'000'000'000);
    EXPECT_EQ(micros("1969-12-31T23:59:59.5Z"), -500'000);
    for (const char* text :
         {"", "2023", "2023-11-14", "2023-11-14T22:13:20", "2023-02-29T00:00:00Z",
          "2023-11-14T24:13:20Z", "2023-11-14T22:13:20.Z", "2023-11-14T22:13:20Z ",
          "2023-11-14T22:13:20+0200", "2023-11-14T22:13:20+24:00", "+023-11-14T22:13:20Z"})
        EXPECT_EQ(micros(text), std::nullopt) << text;
}

TEST(HeadersFromJson, KeepsTextsAndWritesOtherValuesAsJson) {
    EXPECT_EQ(members_of_json(R"({"a": "x", "n": 1.10, "o": {"b": [1]}, "no": null})"),
              (Texts{{"a", "x"}, {"n", "1.10"}, {"o", R"({"b": [1]})"}}));
    EXPECT_EQ(members_of_json("{}"), Texts{});
    for (const char* text : {"", "[]", "{", "\"a\""})
        EXPECT_EQ(members_of_json(text), std::nullopt) << text;
}

}  // namespace
}  // namespace inbox
