// The sqs and sns sinks against a scripted server on loopback.
#include <gmock/gmock.h>

#include <cstdlib>

#include "core/sink.hpp"
#include "driven_aws_sink.hpp"
#include "net/json.hpp"
#include "unit/mutations.hpp"

namespace outbox {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using AwsSinkTest = DrivenAwsSink;

constexpr const char* sqs = "sqs://eu-west-1/123456789012";
constexpr const char* sns = "sns://eu-west-1/123456789012";

Reply sqs_took(std::size_t count) {
    std::string body = R"({"Successful":[)";
    for (std::size_t i = 0; i < count; i++)
        body += (i > 0 ? ",{\"Id\":\"" : "{\"Id\":\"") + std::to_string(i) + R"(","MessageId":"m)" +
                std::to_string(i) + "\"}";
    return answer(200, body + "]}");
}

Reply sqs_error(int status, const std::string& code, const std::string& message = "no",
                const std::string& headers = "") {
    return answer(status,
                  R"({"__type":"com.amazonaws.sqs#)" + code + R"(","message":")" + message + "\"}",
                  headers);
}

Reply sns_took_first_of_two() {
    return answer(200,
                  "<PublishBatchResponse><PublishBatchResult><Failed><member><Id>1</Id>"
                  "<Code>InternalError</Code><SenderFault>false</SenderFault></member></Failed>"
                  "<Successful><member><MessageId>m0</MessageId><Id>0</Id></member></Successful>"
                  "</PublishBatchResult></PublishBatchResponse>");
}

// ---------------------------------------------------------------------------------------------
// Requests
// ---------------------------------------------------------------------------------------------

TEST_F(AwsSinkTest, SendsABatchToAQueue) {
    create(sqs);
    peer_.then(sqs_took(2));
    const Outcome outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_TRUE(outcome.of_events.empty());
    EXPECT_TRUE(outcome.message_ids.empty()) << "nobody asked for them";

    const std::string request = peer_.requests().front();
    EXPECT_THAT(request, StartsWith("POST / HTTP/1.1\r\nHost: 127.0.0.1:"));
    EXPECT_THAT(request, HasSubstr("\r\nContent-Type: application/x-amz-json-1.0\r\n"));
    EXPECT_THAT(request, HasSubstr("\r\nX-Amz-Target: AmazonSQS.SendMessageBatch\r\n"));
    EXPECT_THAT(request, HasSubstr("\r\nAuthorization: AWS4-HMAC-SHA256 Credential=AKIA/"));
    EXPECT_THAT(request, HasSubstr("/eu-west-1/sqs/aws4_request, SignedHeaders=content-type;host;"
                                   "x-amz-date;x-amz-target, Signature="));
    EXPECT_THAT(request, Not(HasSubstr("X-Amz-Security-Token")));
    EXPECT_THAT(request, Not(HasSubstr("secret")));

    const auto json = parse_json(body_of(request));
    ASSERT_TRUE(json) << request;
    EXPECT_THAT(json_text(*json, "QueueUrl"), StartsWith("http://127.0.0.1:"));
    EXPECT_THAT(json_text(*json, "QueueUrl"), testing::EndsWith("/123456789012/video-events"));
    ASSERT_EQ((*json)["Entries"].size(), 2u);
    const Json::Value& entry = (*json)["Entries"][1];
    EXPECT_EQ(entry["Id"], "1");
    EXPECT_EQ(entry["MessageBody"], R"({"n":1})");
    EXPECT_EQ(entry["MessageAttributes"]["event_id"]["StringValue"], sample_id);
    EXPECT_EQ(entry["MessageAttributes"]["version"]["DataType"], "Number");
    EXPECT_EQ(entry["MessageAttributes"].size(), 8u);
    EXPECT_FALSE(entry.isMember("MessageGroupId"));
    EXPECT_FALSE(entry.isMember("MessageDeduplicationId"));
}

TEST_F(AwsSinkTest, SendsABatchToATopic) {
    create(sns, {{"topic", "{aggregate_type}.fifo"}, {"receipts", "on"}},
           {{"access_key_id", "ASIA"},
            {"secret_access_key", "s"},
            {"session_token", "session-t0ken"}});
    peer_.then(sns_took_first_of_two());
    const Outcome outcome = send(batch(2));
    ASSERT_EQ(outcome.of_events.size(), 2u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::confirmed);
    EXPECT_EQ(outcome.of_events[1].fate, Fate::failed);
    EXPECT_THAT(outcome.message_ids, testing::ElementsAre("m0", ""));

    const std::string request = peer_.requests().front();
    EXPECT_THAT(request, HasSubstr("\r\nX-Amz-Security-Token: session-t0ken\r\n"));
    EXPECT_THAT(request, HasSubstr("/eu-west-1/sns/aws4_request, SignedHeaders=content-type;host;"
                                   "x-amz-date;x-amz-security-token, Signature="));
    const std::string body = body_of(request);
    EXPECT_THAT(body, StartsWith("Action=PublishBatch&Version=2010-03-31"
                                 "&TopicArn=arn%3Aaws%3Asns%3Aeu-west-1%3A123456789012%3Avideo.fifo"
                                 "&PublishBatchRequestEntries.member.1.Id=0"
                                 "&PublishBatchRequestEntries.member.1.Message=%7B%22n%22%3A1%7D"
                                 "&PublishBatchRequestEntries.member.1.MessageGroupId=v-1"
                                 "&PublishBatchRequestEntries.member.1.MessageDeduplicationId=" +
                                 std::string(sample_id)));
    EXPECT_THAT(body, HasSubstr("&PublishBatchRequestEntries.member.2.Id=1&"));
    EXPECT_THAT(body,
                HasSubstr("&PublishBatchRequestEntries.member.2.MessageAttributes.entry.8.Name="
                          "content_type&"));
}

TEST_F(AwsSinkTest, KnowsThePartitionOfARegion) {
    for (const auto& [region, partition] : {std::pair{"cn-north-1", "aws-cn"},
                                            {"us-gov-west-1", "aws-us-gov"},
                                            {"us-east-1", "aws"}}) {
        create("sns://" + std::string(region) + "/123456789012");
        send(batch(1));
        EXPECT_THAT(peer_.requests().back(),
                    HasSubstr("TopicArn=arn%3A" + std::string(partition) + "%3Asns%3A" + region));
    }
}

TEST_F(AwsSinkTest, NamesHaveOnlyLegalCharacters) {
    Event& first = event();
    first.topic = "vidéo.events/日本 _x-1";
    create(sqs);
    EXPECT_EQ(lane(first), "vid-o-events----_x-1");
    create(sqs, {{"queue", "{database}.{topic}.fifo"}});
    first.topic = "a.fifo";
    EXPECT_EQ(lane(first), "shop-a-fifo.fifo");
    create(sqs, {{"queue", "{topic}"}});
    EXPECT_EQ(lane(first), "a-fifo");
}

TEST_F(AwsSinkTest, AnEndpointMayEndWithASlash) {
    const std::string peer = peer_.url().substr(0, peer_.url().rfind('/') + 1);
    create(sqs, {{"url", std::string(sqs) + "?endpoint=" + peer}});
    peer_.then(sqs_took(1));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    EXPECT_THAT(peer_.requests().front(), StartsWith("POST / HTTP/1.1\r\n"));
    EXPECT_THAT(peer_.requests().front(),
                HasSubstr("\"QueueUrl\":\"" + peer + "123456789012/video-events\""));
}

TEST_F(AwsSinkTest, DeclaresItsCapabilities) {
    create(sqs);
    Capabilities can = sink_->capabilities();
    EXPECT_EQ(can.max_batch_events, 10u);
    EXPECT_EQ(can.max_batch_bytes, 1024u * 1024);
    EXPECT_EQ(can.max_batches, 16u);
    EXPECT_EQ(can.keys, KeyPolicy::mixed);
    EXPECT_TRUE(can.lanes);
    create(sns, {{"topic", "all.fifo"}, {"batch_size", "3"}, {"max_connections", "2"}});
    can = sink_->capabilities();
    EXPECT_EQ(can.max_batch_events, 3u);
    EXPECT_EQ(can.max_batch_bytes, 256u * 1024);
    EXPECT_EQ(can.max_batches, 2u);
    EXPECT_EQ(can.keys, KeyPolicy::one_each);
    EXPECT_FALSE(can.lanes);
    create(sns, {{"batch_size", "100"}});
    EXPECT_EQ(sink_->capabilities().max_batch_events, 10u);
}

// ---------------------------------------------------------------------------------------------
// Limits
// ---------------------------------------------------------------------------------------------

TEST_F(AwsSinkTest, SendsMessagesOfTheLargestSize) {
    for (const auto& [url, limit] : {std::pair{sqs, 1024 * 1024}, {sns, 256 * 1024}}) {
        create(url);
        Event& one = event();
        // Names, types and values of attributes count.
        const std::size_t others = sink_->size_of(one);
        std::size_t largest = static_cast<std::size_t>(limit);
        std::string payload;
        const auto fits = [&](std::size_t size) {
            payload.assign(size, 'x');
            one.payload = payload;
            const std::size_t before = peer_.requests().size();
            const Outcome outcome = send(batch({&one}));
            const bool sent = peer_.requests().size() > before;
            EXPECT_EQ(outcome.permanent, !sent);
            if (!sent) {
                EXPECT_EQ(outcome.fate, Fate::refused);
                EXPECT_THAT(outcome.error, testing::MatchesRegex(
                                               "the message has [0-9]+ bytes, S.S takes at most " +
                                               std::to_string(limit)));
            }
            return sent;
        };
        // The largest size that is sent, and the smallest that is refused, are next to each other.
        std::size_t low = largest - others, high = largest;
        ASSERT_TRUE(fits(low));
        ASSERT_FALSE(fits(high));
        while (high - low > 1)
            (fits((low + high) / 2) ? low : high) = (low + high) / 2;
        // The 8 attributes of the sample event, counted by hand.
        const std::size_t attributes =
            std::string(
                "event_idevent_typeaggregate_typeaggregate_idversionschema_version"
                "occurred_atcontent_type")
                .size() +
            8 * 6 + 36 + 13 + 5 + 3 + 1 + 1 + 27 + 16;
        EXPECT_EQ(low, largest - attributes) << url;
    }
}

TEST_F(AwsSinkTest, AllMessagesOfABatchCountTogether) {
    create(sns);
    const std::string payload(200 * 1024, 'x');
    Event &first = event(), &second = event();
    first.payload = second.payload = payload;
    const Outcome outcome = send(batch({&first, &second}));
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_THAT(outcome.error, StartsWith("the messages have "));
    EXPECT_TRUE(peer_.requests().empty());
}

TEST_F(AwsSinkTest, RefusesNamesThatAreTooLong) {
    const std::string fits(80, 'q'), too_long(81, 'q');
    create(sqs);
    Event& one = event();
    one.topic = fits;
    peer_.then(sqs_took(1));
    EXPECT_EQ(send(batch({&one})).fate, Fate::confirmed);
    one.topic = too_long;
    const Outcome outcome = send(batch({&one}));
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_TRUE(outcome.permanent);
    EXPECT_THAT(outcome.error, HasSubstr("the name has 81 characters, at most 80 are allowed"));
    create(sns, {{"topic", "{topic}.fifo"}});
    const std::string suffixed(252, 't');
    one.topic = suffixed;
    EXPECT_THAT(send(batch({&one})).error, HasSubstr("257 characters, at most 256"));

    // The name is the same for all events, so no event is at fault.
    create(sqs, {{"queue", too_long}});
    const Outcome everybodys = send(batch({&one}));
    EXPECT_EQ(everybodys.fate, Fate::unavailable);
    EXPECT_FALSE(everybodys.permanent);
}

TEST_F(AwsSinkTest, RefusesAttributesWithIllegalCharacters) {
    create(sqs);
    Event& one = event();
    one.aggregate_id = "a\uffff";
    const Outcome outcome = send(batch({&one}));
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_TRUE(outcome.permanent);
    EXPECT_EQ(outcome.error, "attribute aggregate_id has a character SQS does not take");
    EXPECT_TRUE(peer_.requests().empty());
}

// ---------------------------------------------------------------------------------------------
// Answers
// ---------------------------------------------------------------------------------------------

TEST_F(AwsSinkTest, EachEntryHasAnOutcomeOfItsOwn) {
    create(sqs, {{"receipts", "on"}});
    peer_.then(answer(200, R"({"Successful":[{"Id":"3","MessageId":"m3"}],"Failed":[
        {"Id":"0","Code":"InvalidMessageContents","SenderFault":true,"Message":"bad"},
        {"Id":"1","Code":"RequestThrottled","SenderFault":true},
        {"Id":"2","Code":"Unheard","SenderFault":true}]})"));
    const Outcome outcome = send(batch(5));
    ASSERT_EQ(outcome.of_events.size(), 5u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::refused);
    EXPECT_TRUE(outcome.of_events[0].permanent);
    EXPECT_EQ(outcome.of_events[0].error, "queue \"video-events\": InvalidMessageContents: bad");
    EXPECT_EQ(outcome.of_events[1].fate, Fate::throttled);
    EXPECT_EQ(outcome.of_events[2].fate, Fate::refused);
    EXPECT_FALSE(outcome.of_events[2].permanent);
    EXPECT_EQ(outcome.of_events[3].fate, Fate::confirmed);
    EXPECT_EQ(outcome.of_events[4].fate, Fate::failed);
    EXPECT_THAT(outcome.of_events[4].error, HasSubstr("does not mention the event"));
    EXPECT_THAT(outcome.message_ids, testing::ElementsAre("", "", "", "m3", ""));
    EXPECT_NE(outcome.fate, Fate::confirmed);
}

TEST_F(AwsSinkTest, GivesMessageIdsToReceipts) {
    create(sqs, {{"receipts", "on"}});
    peer_.then(sqs_took(3));
    EXPECT_THAT(send(batch(3)).message_ids, testing::ElementsAre("m0", "m1", "m2"));
}

TEST_F(AwsSinkTest, AnErrorOfTheRequestAppliesToAllEvents) {
    create(sqs);
    peer_.then(sqs_error(400, "QueueDoesNotExist", "The specified queue does not exist."));
    Outcome outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_TRUE(outcome.of_events.empty());
    EXPECT_EQ(outcome.error,
              "queue \"video-events\": HTTP 400 QueueDoesNotExist: The specified queue does not "
              "exist.");

    peer_.then(sqs_error(400, "RequestThrottled", "slow down", "Retry-After: 7\r\n"));
    outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::throttled);
    EXPECT_EQ(outcome.retry_after, seconds(7));

    peer_.then(sqs_error(400, "BatchRequestTooLong"));
    outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_TRUE(outcome.permanent);

    peer_.then(answer(500, "oops"));
    outcome = send(batch(1));
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_EQ(outcome.error, "queue \"video-events\": HTTP 500: oops");

    peer_.then(answer(200, "<html>"));
    outcome = send(batch(1));
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_EQ(outcome.error, "queue \"video-events\": HTTP 200, but the answer is malformed");

    peer_.then({.bytes = "HTTP/1.1 2", .close = true});
    EXPECT_EQ(send(batch(1)).fate, Fate::failed);
}

TEST_F(AwsSinkTest, AnErrorOfATopicIsNamed) {
    create(sns);
    peer_.then(answer(404,
                      "<ErrorResponse><Error><Type>Sender</Type><Code>NotFound</Code>"
                      "<Message>Topic does not exist</Message></Error></ErrorResponse>"));
    const Outcome outcome = send(batch(1));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.error, "topic \"video-events\": HTTP 404 NotFound: Topic does not exist");
}

TEST_F(AwsSinkTest, ASessionTokenThatComesBackIsNotShown) {
    create(sqs, {},
           {{"access_key_id", "ASIA"},
            {"secret_access_key", "s"},
            {"session_token", "session-t0ken"}});
    for (const Reply& reply : {sqs_error(403, "SignatureDoesNotMatch",
                                         "should have been\\nx-amz-security-token:session-t0ken"),
                               sqs_error(400, "SomethingElse", "about session-t0ken"),
                               sqs_error(400, "SomethingElse", "about session-\\u00740ken"),
                               answer(502, "you sent session-t0ken")}) {
        peer_.then(reply);
        const std::string error = send(batch(1)).error;
        EXPECT_THAT(error, StartsWith("queue \"video-events\": HTTP "));
        EXPECT_THAT(error, Not(HasSubstr("session-t0ken")));
    }
}

TEST_F(AwsSinkTest, ASessionTokenThatComesBackWithAnEntryIsNotShown) {
    create(sqs, {},
           {{"access_key_id", "ASIA"},
            {"secret_access_key", "s"},
            {"session_token", "session-t0ken"}});
    peer_.then(answer(200, R"({"Successful":[],"Failed":[{"Id":"0","Code":"X","SenderFault":false,
                               "Message":"about session-t0ken"}]})"));
    EXPECT_EQ(send(batch(1)).error, "queue \"video-events\": X: about ***");
}

TEST_F(AwsSinkTest, SeveralRequestsMayBeRejectedForTheirKeys) {
    create(sqs);
    for (int i = 0; i < 4; i++)
        peer_.then(sqs_error(403, "InvalidClientTokenId"));
    for (int i = 0; i < 4; i++)
        sink_->submit(batch(1));
    for (const Outcome& outcome : outcomes(4))
        EXPECT_EQ(outcome.fate, Fate::unavailable);
    peer_.then(sqs_took(1));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
}

// ---------------------------------------------------------------------------------------------
// Queues whose account is not known
// ---------------------------------------------------------------------------------------------

TEST_F(AwsSinkTest, AsksForTheUrlOfAQueueOnce) {
    create("sqs://eu-west-1");
    peer_.then(answer(200, R"({"QueueUrl":"http://there/1/video-events"})"));
    peer_.then(sqs_took(2));
    peer_.then(sqs_took(1));
    EXPECT_EQ(send(batch(2)).fate, Fate::confirmed);
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    const std::vector<std::string> requests = peer_.requests();
    ASSERT_EQ(requests.size(), 3u);
    EXPECT_THAT(requests[0], HasSubstr("\r\nX-Amz-Target: AmazonSQS.GetQueueUrl\r\n"));
    EXPECT_EQ(body_of(requests[0]), R"({"QueueName":"video-events"})");
    for (std::size_t i : {1u, 2u}) {
        EXPECT_THAT(requests[i], HasSubstr("\r\nX-Amz-Target: AmazonSQS.SendMessageBatch\r\n"));
        EXPECT_THAT(requests[i], HasSubstr(R"({"QueueUrl":"http://there/1/video-events",)"));
    }
}

TEST_F(AwsSinkTest, AsksAgainWhenTheQueueIsGone) {
    create("sqs://eu-west-1");
    peer_.then(answer(200, R"({"QueueUrl":"http://there/1/video-events"})"));
    peer_.then(sqs_error(400, "QueueDoesNotExist"));
    EXPECT_EQ(send(batch(1)).fate, Fate::unavailable);
    peer_.then(answer(200, R"({"QueueUrl":"http://there/2/video-events"})"));
    peer_.then(sqs_took(1));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    EXPECT_THAT(peer_.requests().back(), HasSubstr("http://there/2/video-events"));
}

TEST_F(AwsSinkTest, AMissingQueueMakesTheDestinationUnavailable) {
    create("sqs://eu-west-1");
    peer_.then(sqs_error(400, "QueueDoesNotExist"));
    EXPECT_THAT(send(batch(1)).error, HasSubstr("HTTP 400 QueueDoesNotExist"));
    for (const Reply& reply :
         {answer(200, "{}"), answer(200, "nonsense"), answer(500, ""), sqs_error(400, "Unheard"),
          Reply{.bytes = "HTTP/1.1 2", .close = true}}) {
        peer_.then(reply);
        const Outcome outcome = send(batch(1));
        EXPECT_EQ(outcome.fate, Fate::unavailable) << outcome.error;
        EXPECT_FALSE(outcome.permanent);
    }
}

TEST_F(AwsSinkTest, ABatchThatCannotBeSentIsRefusedWithoutAQueue) {
    create("sqs://eu-west-1");
    Event& one = event();
    const std::string payload(2 * 1024 * 1024, 'x');
    one.payload = payload;
    EXPECT_EQ(send(batch({&one})).fate, Fate::refused);
    EXPECT_TRUE(peer_.requests().empty());
}

// ---------------------------------------------------------------------------------------------
// Credentials
// ---------------------------------------------------------------------------------------------

class Variables {
  public:
    ~Variables() {
        for (const std::string& name : names_)
            unsetenv(name.c_str());
    }
    void set(const char* name, const std::string& value) {
        setenv(name, value.c_str(), 1);
        names_.push_back(name);
    }

  private:
    std::vector<std::string> names_;
};

TEST_F(AwsSinkTest, WaitsForCredentialsAndFetchesOthersWhenTheyAreRefused) {
    Variables environment;
    ScriptedPeer platform;
    environment.set("HOME", "/there/is/no/such/directory");
    environment.set("AWS_EC2_METADATA_SERVICE_ENDPOINT",
                    platform.url().substr(0, platform.url().rfind('/')));
    const auto give = [&](const std::string& id) {
        platform.then(answer(200, "session"));
        platform.then(answer(200, "role"));
        platform.then(answer(200, R"({"AccessKeyId":")" + id +
                                      R"(","SecretAccessKey":"s","Token":"session-t0ken",)"
                                      R"("Expiration":"2999-01-01T00:00:00Z"})"));
    };
    give("ASIA1");
    create(sqs, {}, {});
    peer_.then(sqs_took(1));
    peer_.then(sqs_took(1));
    sink_->submit(batch(1));
    sink_->submit(batch(1));
    for (const Outcome& outcome : outcomes(2))
        EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_EQ(platform.requests().size(), 3u);
    EXPECT_THAT(peer_.requests().back(), HasSubstr("Credential=ASIA1/"));

    peer_.then(sqs_error(403, "ExpiredToken"));
    EXPECT_EQ(send(batch(1)).fate, Fate::unavailable);
    give("ASIA2");
    peer_.then(sqs_took(1));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    EXPECT_THAT(peer_.requests().back(), HasSubstr("Credential=ASIA2/"));
}

TEST_F(AwsSinkTest, ReportsMissingCredentials) {
    Variables environment;
    environment.set("HOME", "/there/is/no/such/directory");
    environment.set("AWS_EC2_METADATA_DISABLED", "true");
    create(sqs, {}, {});
    const Outcome outcome = send(batch(1));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, StartsWith("no AWS credentials: "));
    EXPECT_TRUE(peer_.requests().empty());
}

// ---------------------------------------------------------------------------------------------
// Random input
// ---------------------------------------------------------------------------------------------

TEST_F(AwsSinkTest, AnyAnswerHasAnOutcome) {
    Mutations replies({sqs_took(3).bytes, sqs_error(400, "QueueDoesNotExist").bytes,
                       answer(200, R"({"Failed":[{"Id":"0","Code":"x"}]})").bytes},
                      "{}[]\",:\r\n 0");
    create(sqs, {{"request_timeout", "20ms"}});
    for (int i = 0; i < 300; i++) {
        peer_.then({.bytes = replies.next(), .close = true});
        const Outcome outcome = send(batch(3));
        EXPECT_TRUE(outcome.of_events.empty() || outcome.of_events.size() == 3);
    }
}

}  // namespace
}  // namespace outbox
