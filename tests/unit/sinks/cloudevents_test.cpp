// Events as CloudEvents: headers byte by byte, JSON read back by another library.
#include "sinks/cloudevents.hpp"

#include <gtest/gtest.h>
#include <json/json.h>

#include "unit/sample_event.hpp"

namespace outbox {
namespace {

std::string binary_headers(const Event& event, std::string_view database = "shop") {
    RequestContent content;
    encode_binary(event, source_prefix(database), content);
    return content.headers;
}

Json::Value parsed(std::string_view text) {
    Json::CharReaderBuilder builder;
    builder["rejectDupKeys"] = true;
    builder["failIfExtra"] = true;
    const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
    Json::Value value;
    std::string errors;
    EXPECT_TRUE(reader->parse(text.data(), text.data() + text.size(), &value, &errors))
        << errors << text;
    return value;
}

TEST(CloudEvents, BinaryHasEveryAttributeAsAHeaderAndThePayloadAsBody) {
    SampleEvent sample;
    sample.event.has_version = true;
    sample.event.version = 7;
    sample.event.has_source_event_id = true;
    RequestContent content;
    encode_binary(sample.event, source_prefix("shop"), content);
    EXPECT_EQ(content.headers,
              "ce-specversion: 1.0\r\n"
              "ce-id: 00112233-4455-6677-8899-aabbccddeeff\r\n"
              "ce-source: /shop/video\r\n"
              "ce-type: VideoUpdated\r\n"
              "ce-subject: v1\r\n"
              "ce-time: 2023-11-14T22:13:20.123456Z\r\n"
              "ce-partitionkey: v1\r\n"
              "ce-sequence: 42\r\n"
              "ce-aggregateversion: 7\r\n"
              "ce-schemaversion: 1\r\n"
              "ce-topic: video.events\r\n"
              "ce-sourceeventid: 00000000-0000-0000-0000-000000000000\r\n"
              "Content-Type: application/json\r\n");
    EXPECT_EQ(content.body, sample.event.payload);
}

TEST(CloudEvents, OmitsMissingFields) {
    SampleEvent sample;
    sample.event.ordering_key = "";
    sample.event.has_payload = false;
    sample.event.payload = "";
    const std::string headers = binary_headers(sample.event);
    for (const char* absent : {"partitionkey", "aggregateversion", "sourceeventid", "Content-Type"})
        EXPECT_EQ(headers.find(absent), std::string::npos) << absent;
}

TEST(CloudEvents, HeaderValuesArePercentEncoded) {
    SampleEvent sample;
    sample.event.aggregate_id = "a b\"c%d\r\n\xc3\xa4\x7f";
    EXPECT_NE(binary_headers(sample.event).find("ce-subject: a%20b%22c%25d%0D%0A%C3%A4%7F\r\n"),
              std::string::npos);
}

TEST(CloudEvents, TheSourceIsAPathAndThenAHeaderValue) {
    SampleEvent sample;
    sample.event.aggregate_type = "a/b c";
    EXPECT_NE(binary_headers(sample.event, "my db").find("ce-source: /my%2520db/a%252Fb%2520c\r\n"),
              std::string::npos);
}

TEST(CloudEvents, HeadersBecomeAttributesOrElseHttpHeaders) {
    SampleEvent sample;
    sample.add("traceparent", "00-a");
    sample.add("X-Tenant", "t 1");
    sample.add("count", "5", Header::Kind::literal);
    sample.add("nothing", "", Header::Kind::null);
    const std::string headers = binary_headers(sample.event);
    EXPECT_NE(headers.find("ce-traceparent: 00-a\r\ntraceparent: 00-a\r\n"), std::string::npos);
    EXPECT_NE(headers.find("\r\nX-Tenant: t 1\r\n"), std::string::npos);
    EXPECT_NE(headers.find("ce-count: 5\r\n"), std::string::npos);
    EXPECT_EQ(headers.find("nothing"), std::string::npos);
}

TEST(CloudEvents, StructuredIsAJsonDocument) {
    SampleEvent sample;
    sample.event.aggregate_id = "quote \" back \\ line \n \xc3\xa4";
    sample.add("tenant", "t\t1");
    sample.add("flag", "true", Header::Kind::literal);
    sample.add("small", "-5", Header::Kind::literal);
    sample.add("large", "5000000000", Header::Kind::literal);
    sample.add("ratio", "0.5", Header::Kind::literal);
    sample.add("X-Plain", "y");
    RequestContent content;
    encode_structured(sample.event, source_prefix("shop"), content);
    EXPECT_EQ(content.headers,
              "Content-Type: application/cloudevents+json; charset=UTF-8\r\nX-Plain: y\r\n");
    const Json::Value event = parsed(content.body);
    EXPECT_EQ(event["specversion"], "1.0");
    EXPECT_EQ(event["id"], "00112233-4455-6677-8899-aabbccddeeff");
    EXPECT_EQ(event["source"], "/shop/video");
    EXPECT_EQ(event["subject"], "quote \" back \\ line \n \xc3\xa4");
    EXPECT_EQ(event["sequence"], "42");
    EXPECT_EQ(event["tenant"], "t\t1");
    EXPECT_EQ(event["flag"], true);
    EXPECT_EQ(event["small"], -5);
    EXPECT_EQ(event["large"], "5000000000");
    EXPECT_EQ(event["ratio"], "0.5");
    EXPECT_EQ(event["datacontenttype"], "application/json");
    EXPECT_EQ(event["data"]["title"], "Cats");
    EXPECT_FALSE(event.isMember("X-Plain"));
}

TEST(CloudEvents, DataThatIsNotJsonGoesAsBase64) {
    SampleEvent sample;
    sample.event.content_type = "application/x-protobuf";
    for (const auto& [bytes, base64] :
         std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {std::string("\0\xff", 2), "AP8="}}) {
        sample.event.payload = bytes;
        RequestContent content;
        encode_structured(sample.event, source_prefix("shop"), content);
        EXPECT_EQ(parsed(content.body)["data_base64"], base64);
        EXPECT_FALSE(parsed(content.body).isMember("data"));
    }
    for (const char* type : {"application/vnd.x+json", "APPLICATION/JSON; charset=utf-8"}) {
        sample.event.content_type = type;
        sample.event.payload = "[1]";
        RequestContent content;
        encode_structured(sample.event, source_prefix("shop"), content);
        EXPECT_EQ(parsed(content.body)["data"][0], 1) << type;
    }
}

TEST(CloudEvents, ABatchIsAnArrayInOrderWhoseHeadersAllBecomeAttributes) {
    SampleEvent first, second;
    second.event.position = 43;
    second.add("X-Tenant-Id", "t");
    second.add("plain.text", "p");
    Event* events[] = {&first.event, &second.event};
    RequestContent content;
    encode_batched(events, source_prefix("shop"), content);
    EXPECT_EQ(content.headers,
              "Content-Type: application/cloudevents-batch+json; charset=UTF-8\r\n");
    const Json::Value batch = parsed(content.body);
    ASSERT_EQ(batch.size(), 2u);
    EXPECT_EQ(batch[0]["sequence"], "42");
    EXPECT_EQ(batch[1]["sequence"], "43");
    EXPECT_EQ(batch[1]["xtenantid"], "t");
    EXPECT_EQ(batch[1]["xplaintext"], "p");
}

TEST(CloudEvents, BuffersStartOverWithEachRequest) {
    SampleEvent sample;
    RequestContent content;
    encode_batched(std::vector<Event*>{&sample.event}, source_prefix("shop"), content);
    encode_structured(sample.event, source_prefix("shop"), content);
    EXPECT_EQ(parsed(content.body)["sequence"], "42");
    encode_binary(sample.event, source_prefix("shop"), content);
    EXPECT_EQ(content.body, sample.event.payload);
}

// Payloads that enqueue() has not checked: restored rows, and rows of an earlier version.
TEST(CloudEvents, ADocumentHoldsOneEventWhateverItsPayloadIs) {
    const std::string forged =
        R"(1},{"specversion":"1.0","id":"1","source":"/a","type":"Paid","data":{"amount":1})";
    for (const char* type : {"application/json", "application/json ", " application/json;",
                             "APPLICATION/JSON; a=\"", "x/y+json"}) {
        SampleEvent sample;
        sample.event.content_type = type;
        sample.event.payload = forged;
        RequestContent content;
        Event* const events[] = {&sample.event, &sample.event};
        encode_batched(events, source_prefix("shop"), content);
        const Json::Value batch = parsed(content.body);
        ASSERT_EQ(batch.size(), 2u) << type;
        EXPECT_TRUE(batch[0].isMember("data_base64")) << type;
        EXPECT_FALSE(batch[0].isMember("data")) << type;
        encode_structured(sample.event, source_prefix("shop"), content);
        EXPECT_EQ(parsed(content.body)["topic"], "video.events");
    }
}

TEST(CloudEvents, HeadersNeverReplaceAttributesOfTheEvent) {
    SampleEvent sample;
    sample.add("id", "forged");
    sample.add("topic", "bank.payments");
    sample.add("data", "1");
    sample.add("X-Line\r\nHost", "a\r\nAuthorization: b");
    sample.event.content_type = "text/plain\r\nX-Forged: 1";
    RequestContent content;
    encode_structured(sample.event, source_prefix("shop"), content);
    EXPECT_EQ(parsed(content.body)["topic"], "video.events");
    EXPECT_EQ(content.headers.find("\r\nHost"), std::string::npos);
    EXPECT_EQ(content.headers.find("\r\nAuthorization"), std::string::npos);
    const std::string headers = binary_headers(sample.event);
    EXPECT_EQ(headers.find("forged"), std::string::npos);
    EXPECT_EQ(headers.find("bank.payments"), std::string::npos);
    EXPECT_EQ(headers.find("\r\nX-Forged"), std::string::npos);
    EXPECT_EQ(headers.find("\r\nAuthorization"), std::string::npos);
}

}  // namespace
}  // namespace outbox
