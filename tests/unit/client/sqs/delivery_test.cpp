#include "sqs/delivery.hpp"

#include <gmock/gmock.h>

namespace inbox::sqs {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

static constexpr const char* id = "0193c0de-0000-7000-8000-00000000000a";

static Message message(std::string body, std::map<std::string, std::string> attributes = {}) {
    return {.id = "m1",
            .receipt_handle = "h1",
            .body = std::move(body),
            .attributes = std::move(attributes)};
}

static Event event_of(Message message, bool fifo = false) {
    return delivery_from(std::move(message), "sqs://r/q", "q", fifo).event;
}

TEST(SqsDelivery, DecodesMessagesOfTheSink) {
    const Event event = event_of(message(R"({"n":1})", {{"event_id", id},
                                                        {"event_type", "Changed"},
                                                        {"aggregate_type", "item"},
                                                        {"aggregate_id", "7"},
                                                        {"version", "3"},
                                                        {"schema_version", "2"},
                                                        {"occurred_at", "2026-01-31T10:20:30Z"},
                                                        {"content_type", "application/json"},
                                                        {"headers", R"({"a":"b","n":[1]})"}}));
    EXPECT_EQ(event.id, id);
    EXPECT_EQ(event.type, "Changed");
    EXPECT_EQ(event.version, 3);
    EXPECT_EQ(event.schema_version, 2);
    EXPECT_EQ(event.payload, R"({"n":1})");
    EXPECT_EQ(event.topic, "q");
    EXPECT_THAT(event.headers, UnorderedElementsAre(Pair("a", "b"), Pair("n", "[1]")));
}

TEST(SqsDelivery, DecodesTheBody) {
    const auto payload = [](std::string body, const char* encoding, bool typed) {
        std::map<std::string, std::string> attributes{{"encoding", encoding}};
        if (typed)
            attributes["content_type"] = "text/plain";
        return event_of(message(std::move(body), attributes)).payload;
    };
    EXPECT_EQ(payload("AP8=", "base64", true), std::string("\0\xff", 2));
    EXPECT_EQ(payload("-", "none", false), std::nullopt);
    EXPECT_EQ(payload("-", "none", true), "");  // there was an empty payload
    EXPECT_EQ(payload("no base64!", "base64", true), "no base64!");
    EXPECT_EQ(payload("x", "rot13", true), "x");
}

TEST(SqsDelivery, KeepsHeadersThatAreNotAnObject) {
    const Event event = event_of(message("", {{"headers", "[1]"}, {"encoding", "rot13"}}));
    EXPECT_THAT(event.headers,
                UnorderedElementsAre(Pair("headers", "[1]"), Pair("encoding", "rot13")));
}

TEST(SqsDelivery, TakesCloudEvents) {
    const Event event = event_of(
        message(R"({"specversion":"1.0","id":")" + std::string(id) +
                    R"(","source":"/shop/item","type":"Changed","subject":"7","data":{"n":1.0}})",
                {{"content-type", "application/cloudevents+json; charset=UTF-8"},
                 {"headers", R"({"Not a name":"x"})"}}));
    EXPECT_EQ(event.id, id);
    EXPECT_EQ(event.aggregate_type, "item");
    EXPECT_EQ(event.payload, R"({"n":1.0})");
    EXPECT_THAT(event.headers, testing::Contains(Pair("Not a name", "x")));
}

TEST(SqsDelivery, OpensTheEnvelopeOfSns) {
    const Event event = event_of(message(R"({
        "Type": "Notification", "MessageId": "1",
         "TopicArn": "arn:aws:sns:eu-west-1:123456789012:items",
        "Message": "AP8=", "Timestamp": "2026-01-31T10:20:30.123Z", "MessageAttributes": {
          "event_type": {"Type": "String", "Value": "Changed"},
          "content_type": {"Type": "String", "Value": "a/b"},
          "encoding": {"Type": "String", "Value": "base64"},
          "blob": {"Type": "Binary", "Value": "YmxvYg=="}}})"));
    EXPECT_EQ(event.type, "Changed");
    EXPECT_EQ(event.topic, "items");
    EXPECT_EQ(event.payload, std::string("\0\xff", 2));
    EXPECT_THAT(event.headers, ElementsAre(Pair("blob", "blob")));
}

TEST(SqsDelivery, LeavesMessagesThatOnlyLookLikeAnEnvelope) {
    for (const std::string body :
         {R"({"Type":"Notification"})", R"({"Type":"Notification","TopicArn":"t","Message":{}})",
          R"({"Type":"Other","TopicArn":"t","Message":"m"})", "{", R"({"a":1})"}) {
        const Event event = event_of(message(body));
        EXPECT_EQ(event.payload, body);
        EXPECT_EQ(event.topic, "q");
    }
    const std::string envelope = R"({"Type":"Notification","TopicArn":"t","Message":"m"})";
    EXPECT_EQ(event_of(message(envelope, {{"event_type", "E"}})).payload, envelope);
}

TEST(SqsDelivery, OnlyGroupsOfFifoQueuesMeanOrder) {
    Message m = message("x");
    m.group = "a";
    EXPECT_EQ(event_of(m, true).ordering_key, "a");
    EXPECT_EQ(event_of(m, false).ordering_key, "");
    m.attributes["event_id"] = m.group = id;
    EXPECT_EQ(event_of(m, true).ordering_key, "");
}

TEST(SqsDelivery, NamesItsSource) {
    Message m = message("body", {{"name", "value"}});
    m.sent_at = Time(std::chrono::milliseconds(1234));
    const Delivery delivery = delivery_from(m, "sqs://r/q", "q", false);
    EXPECT_EQ(delivery.source, "sqs://r/q");
    EXPECT_EQ(delivery.message_id, "m1");
    EXPECT_EQ(delivery.handle, "h1");
    EXPECT_EQ(delivery.published_at, m.sent_at);
    EXPECT_EQ(delivery.event.occurred_at, m.sent_at);
    EXPECT_EQ(delivery.size, 13u);
}

// ---------------------------------------------------------------------------------------------
// Requests and answers
// ---------------------------------------------------------------------------------------------

TEST(SqsProtocol, MakesRequests) {
    using std::chrono::seconds;
    EXPECT_EQ(
        receive_request(
            {.queue_url = "u\"", .wait = seconds(20), .visibility = seconds(60), .attempt_id = ""}),
        R"({"QueueUrl":"u\"","MaxNumberOfMessages":10,"WaitTimeSeconds":20,"VisibilityTimeout":60,)"
        R"("MessageSystemAttributeNames":["SentTimestamp","MessageGroupId"],)"
        R"("AttributeNames":["SentTimestamp","MessageGroupId"],"MessageAttributeNames":["All"]})");
    const std::vector<std::string> handles{"a", "b"};
    EXPECT_EQ(delete_request("u", handles),
              R"({"QueueUrl":"u","Entries":[{"Id":"0","ReceiptHandle":"a"},)"
              R"({"Id":"1","ReceiptHandle":"b"}]})");
    EXPECT_EQ(
        visibility_request("u", {handles.data(), 1}, seconds(0)),
        R"({"QueueUrl":"u","Entries":[{"Id":"0","ReceiptHandle":"a","VisibilityTimeout":0}]})");
    EXPECT_EQ(queue_url_request("q", ""), R"({"QueueName":"q"})");
    EXPECT_EQ(queue_url_request("q", "123456789012"),
              R"({"QueueName":"q","QueueOwnerAWSAccountId":"123456789012"})");
}

TEST(SqsProtocol, ReadsMessages) {
    const auto messages = parse_messages(R"({"Messages":[{"MessageId":"m","ReceiptHandle":"h",
        "Body":"b","Attributes":{"SentTimestamp":"1700000000123","MessageGroupId":"g"},
        "MessageAttributes":{"s":{"DataType":"String","StringValue":"v"},
                             "n":{"DataType":"Number","StringValue":"7"},
                             "b":{"DataType":"Binary","BinaryValue":"AP8="}}},
        {"ReceiptHandle":"h2"}]})");
    ASSERT_TRUE(messages);
    ASSERT_EQ(messages->size(), 2u);
    const Message& first = messages->front();
    EXPECT_EQ(first.id, "m");
    EXPECT_EQ(first.receipt_handle, "h");
    EXPECT_EQ(first.body, "b");
    EXPECT_EQ(first.group, "g");
    EXPECT_EQ(first.sent_at, Time(std::chrono::milliseconds(1700000000123)));
    EXPECT_THAT(first.attributes,
                ElementsAre(Pair("b", std::string("\0\xff", 2)), Pair("n", "7"), Pair("s", "v")));
}

TEST(SqsProtocol, AnEmptyAnswerIsNotAnError) {
    for (const char* body : {"{}", R"({"Messages":null})", R"({"Messages":[]})"}) {
        const auto messages = parse_messages(body);
        ASSERT_TRUE(messages) << body;
        EXPECT_THAT(*messages, IsEmpty());
    }
}

TEST(SqsProtocol, RefusesMalformedAnswers) {
    for (const char* body : {"", "[]", "<html>", R"({"Messages":{}})", R"({"Messages":[{}]})",
                             R"({"Messages":[{"ReceiptHandle":1}]})", R"({"Messages":["x"]})"})
        EXPECT_FALSE(parse_messages(body)) << body;
    std::string more = R"({"Messages":[{"ReceiptHandle":"h"})";
    for (std::size_t i = 0; i < max_per_request; i++)
        more += R"(,{"ReceiptHandle":"h"})";
    EXPECT_FALSE(parse_messages(more + "]}")) << "more than were asked for";
}

TEST(SqsProtocol, RefusesAnswersWithMoreValuesThanItKeeps) {
    std::string zeros = R"({"Messages":[{"ReceiptHandle":"h","Body":"[0,0]","x":[0)";
    EXPECT_TRUE(parse_messages(zeros + "]}]}"));
    for (int i = 0; i < 100'000; i++)
        zeros += ",0";
    EXPECT_FALSE(parse_messages(zeros + "]}]}"));
}

TEST(SqsProtocol, ATimeBeyondAllIsNone) {
    for (const char* time : {"9223372036854775807", "-1", "253402300800000"}) {
        const auto messages = parse_messages(
            std::string(R"({"Messages":[{"ReceiptHandle":"h","Attributes":{"SentTimestamp":")") +
            time + "\"}}]}");
        EXPECT_EQ(messages.value().front().sent_at, Time()) << time;
    }
}

TEST(SqsProtocol, SurvivesMessagesOfTheWrongShape) {
    const auto messages = parse_messages(
        R"({"Messages":[{"ReceiptHandle":"h","Body":{},"Attributes":[],"MessageAttributes":[1]},
            {"ReceiptHandle":"h","Attributes":{"SentTimestamp":"soon"},
             "MessageAttributes":{"a":1,"b":{"BinaryValue":"?"}}}]})");
    ASSERT_TRUE(messages);
    EXPECT_THAT(messages->back().attributes, ElementsAre(Pair("a", ""), Pair("b", "?")));
}

}  // namespace inbox::sqs
