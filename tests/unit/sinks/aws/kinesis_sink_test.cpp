// The kinesis sink against a scripted server on loopback.
#include <gmock/gmock.h>

#include "core/base64.hpp"
#include "driven_aws_sink.hpp"
#include "net/json.hpp"
#include "net/sha256.hpp"
#include "sinks/aws/kinesis_record.hpp"
#include "unit/mutations.hpp"

namespace outbox {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kinesis = "kinesis://eu-west-1";

std::string taken(std::size_t number) {
    return R"({"SequenceNumber":"4959033)" + std::to_string(number) +
           R"(","ShardId":"shardId-000000000001"})";
}

std::string failed(const std::string& code) {
    return R"({"ErrorCode":")" + code + R"(","ErrorMessage":"Rate exceeded for shard 7."})";
}

Reply results(const std::vector<std::string>& entries) {
    std::string body = R"({"FailedRecordCount":0,"Records":[)";
    for (const std::string& entry : entries)
        body += (body.back() == '[' ? "" : ",") + entry;
    return answer(200, body + "]}");
}

Reply error(int status, const std::string& code, const std::string& headers = "") {
    return answer(status, R"({"__type":")" + code + R"(","message":"no"})", headers);
}

class KinesisSinkTest : public DrivenAwsSink {
  protected:
    Json::Value last_request() {
        const auto json = parse_json(body_of(peer_.requests().back()));
        EXPECT_TRUE(json) << peer_.requests().back();
        return json.value_or(Json::Value());
    }
};

// -------------------------------------------------------------------------------------------------
// Requests
// -------------------------------------------------------------------------------------------------

TEST_F(KinesisSinkTest, SendsABatchToAStream) {
    create(kinesis, {{"receipts", "on"}});
    peer_.then(results({taken(0), taken(1)}));
    const Outcome outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_THAT(outcome.message_ids, testing::ElementsAre("49590330", "49590331"));

    const std::string request = peer_.requests().front();
    EXPECT_THAT(request, HasSubstr("\r\nContent-Type: application/x-amz-json-1.1\r\n"));
    EXPECT_THAT(request, HasSubstr("\r\nX-Amz-Target: Kinesis_20131202.PutRecords\r\n"));
    EXPECT_THAT(request, HasSubstr("/eu-west-1/kinesis/aws4_request, "));
    const Json::Value body = last_request();
    EXPECT_EQ(body["StreamName"], "video.events");
    ASSERT_EQ(body["Records"].size(), 2u);
    EXPECT_EQ(body["Records"][0]["PartitionKey"], "v-1");
    EXPECT_EQ(body["Records"][0].size(), 2u);
    const auto data = base64_decoded(body["Records"][0]["Data"].asString());
    ASSERT_TRUE(data);
    const auto document = parse_json(*data);
    ASSERT_TRUE(document) << *data;
    EXPECT_EQ((*document)["id"], sample_id);
    EXPECT_EQ((*document)["data"]["n"], 1);
}

TEST_F(KinesisSinkTest, SendsThePayloadAlone) {
    create(kinesis, {{"format", "payload"}, {"stream", "of {database}"}});
    event().payload = std::string_view("\0\xff", 2);
    event().payload = {};
    peer_.then(results({taken(0), taken(1)}));
    EXPECT_EQ(send(batch({&events_[0], &events_[1]})).fate, Fate::confirmed);
    const Json::Value body = last_request();
    EXPECT_EQ(body["StreamName"], "of-shop");
    EXPECT_EQ(body["Records"][0]["Data"], "AP8=");
    EXPECT_EQ(body["Records"][1]["Data"], "");
}

TEST_F(KinesisSinkTest, NamesAStreamOfAnAccountByItsArn) {
    create("kinesis://cn-north-1/123456789012");
    peer_.then(results({taken(0)}));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    EXPECT_EQ(last_request()["StreamARN"],
              "arn:aws-cn:kinesis:cn-north-1:123456789012:stream/video.events");
    EXPECT_FALSE(last_request().isMember("StreamName"));
}

TEST_F(KinesisSinkTest, HeadersAreAttributesOfTheDocument) {
    static constexpr Header headers[] = {{"tenant", "a"}, {"X-Request-Id", "r"}};
    create(kinesis);
    event().headers = headers;
    peer_.then(results({taken(0)}));
    EXPECT_EQ(send(batch({&events_[0]})).fate, Fate::confirmed);
    const auto document =
        parse_json(*base64_decoded(last_request()["Records"][0]["Data"].asString()));
    EXPECT_EQ((*document)["tenant"], "a");
    EXPECT_EQ((*document)["xrequestid"], "r");
}

TEST_F(KinesisSinkTest, DeclaresItsCapabilities) {
    create(kinesis);
    const Capabilities usual = sink_->capabilities();
    EXPECT_EQ(usual.max_batch_events, 500u);
    EXPECT_EQ(usual.max_batch_bytes, 5u * 1024 * 1024);
    EXPECT_EQ(usual.keys, KeyPolicy::one_each);
    EXPECT_TRUE(usual.lanes);
    create(kinesis, {{"stream", "all.fifo"}, {"batch_size", "1000"}, {"max_record_size", "10240"}});
    const Capabilities others = sink_->capabilities();
    EXPECT_EQ(others.max_batch_events, 500u);
    EXPECT_EQ(others.max_batch_bytes, 10u * 1024 * 1024);
    EXPECT_FALSE(others.lanes);
    EXPECT_EQ(lane(event()), "all.fifo") << "there is no FIFO";
}

// -------------------------------------------------------------------------------------------------
// Limits
// -------------------------------------------------------------------------------------------------

TEST(PartitionKey, IsTheOrderingKeyIfItIsShortEnough) {
    Event event = sample_event();
    const auto key_of = [&](std::string_view ordering_key) {
        event.ordering_key = ordering_key;
        std::string key;
        append_partition_key(key, event);
        return key;
    };
    const auto repeated = [](const std::string& character, int count) {
        std::string text;
        while (count-- > 0)
            text += character;
        return text;
    };
    EXPECT_EQ(key_of(""), sample_id);
    // One, two, three bytes; the last one takes four, and two characters of the service.
    for (const auto& [character, most] : {std::pair<std::string, int>{"k", 256},
                                          {"\xd0\xba", 256},
                                          {"\xe6\x97\xa5", 256},
                                          {"\xf0\x9d\x84\x9e", 128}}) {
        const std::string longest = repeated(character, most);
        EXPECT_EQ(key_of(longest), longest);
        EXPECT_EQ(key_of(longest + "x"), sha256_hex(longest + "x"));
    }
}

TEST_F(KinesisSinkTest, SendsRecordsOfTheLargestSizeAndNoLargerOnes) {
    for (const char* format : {"payload", "structured"}) {
        const bool alone = format == std::string("payload");
        create(kinesis, {{"format", format}, {"max_record_size", "64"}});
        std::string payload(64 * 1024 - 3, 'x');  // and the key "v-1"
        Event& one = event();
        one.content_type = "text/plain";
        one.payload = payload;
        if (alone)
            peer_.then(results({taken(0)}));
        const Outcome largest = send(batch({&one}));
        EXPECT_EQ(largest.fate, alone ? Fate::confirmed : Fate::refused) << largest.error;
        payload += 'x';
        one.payload = payload;
        const Outcome larger = send(batch({&one}));
        EXPECT_EQ(larger.fate, Fate::refused);
        EXPECT_TRUE(larger.permanent);
        EXPECT_THAT(larger.error, HasSubstr("more than the 65536 of the option max_record_size"));
    }
    EXPECT_EQ(peer_.requests().size(), 1u);
}

TEST_F(KinesisSinkTest, TheBoundOfASizeIsNeverTooSmall) {
    static constexpr Header headers[] = {{"tenant", "\x01\x02"}, {"x", "\xff\xff\xff"}};
    for (const EventFormat format : {EventFormat::structured, EventFormat::payload})
        for (const std::size_t size : {0, 1, 2, 3, 1000})
            for (const std::size_t key : {0, 3, 300}) {
                const std::string odd(size, '\x01'), long_key(key, 'k');
                Event event = sample_event();
                event.payload = event.aggregate_id = event.topic = odd;
                event.ordering_key = long_key;
                event.headers = headers;
                const RecordStyle style{format, "/shop/"};
                KinesisRecord record;
                record.assign(event, style);
                EXPECT_LE(record.size(), record_size_bound(event, style));
            }
}

TEST_F(KinesisSinkTest, RefusesNamesThatAreTooLong) {
    create(kinesis);
    const std::string topic(129, 't');
    event().topic = topic;
    const Outcome outcome = send(batch({&events_[0]}));
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_THAT(outcome.error, HasSubstr("the name has 129 characters, at most 128 are allowed"));
}

// -------------------------------------------------------------------------------------------------
// Outcomes
// -------------------------------------------------------------------------------------------------

TEST_F(KinesisSinkTest, EachRecordHasAnOutcomeOfItsOwn) {
    create(kinesis);
    peer_.then(results({taken(0), failed("ProvisionedThroughputExceededException"),
                        failed("InternalFailure"), failed("KMSDisabledException"),
                        failed("SomethingNew"), "{}", "7"}));
    const Outcome outcome = send(batch(7));
    ASSERT_EQ(outcome.of_events.size(), 7u);
    const auto fate = [&](std::size_t i) { return outcome.of_events[i].fate; };
    EXPECT_EQ(fate(0), Fate::confirmed);
    EXPECT_EQ(fate(1), Fate::throttled);
    EXPECT_EQ(outcome.of_events[1].error,
              "stream \"video.events\": ProvisionedThroughputExceededException: Rate exceeded for "
              "shard 7.");
    EXPECT_EQ(fate(2), Fate::failed);
    EXPECT_EQ(fate(3), Fate::unavailable);
    EXPECT_EQ(outcome.of_events[3].scope, Scope::lane);
    EXPECT_EQ(fate(4), Fate::failed);
    EXPECT_EQ(fate(5), Fate::failed);
    EXPECT_THAT(outcome.of_events[5].error, HasSubstr("the answer does not mention the event"));
    EXPECT_EQ(fate(6), Fate::failed);
}

TEST_F(KinesisSinkTest, AnAnswerWithAnotherNumberOfResultsConfirmsNothing) {
    create(kinesis);
    for (const std::vector<std::string>& entries :
         {std::vector<std::string>{}, {taken(0)}, {taken(0), taken(1), taken(2)}}) {
        peer_.then(results(entries));
        const Outcome outcome = send(batch(2));
        EXPECT_EQ(outcome.fate, Fate::failed);
        EXPECT_TRUE(outcome.of_events.empty());
        EXPECT_THAT(outcome.error, HasSubstr("malformed"));
    }
}

TEST_F(KinesisSinkTest, AnErrorOfTheRequestAppliesToAllEvents) {
    create(kinesis);
    peer_.then(error(400, "ProvisionedThroughputExceededException", "Retry-After: 7\r\n"));
    Outcome outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::throttled);
    EXPECT_EQ(outcome.retry_after, seconds(7));
    for (const char* code : {"ResourceNotFoundException", "AccessDeniedException",
                             "ResourceInUseException", "KMSNotFoundException"}) {
        peer_.then(error(400, code));
        outcome = send(batch(2));
        EXPECT_EQ(outcome.fate, Fate::unavailable) << code;
        EXPECT_EQ(outcome.scope, Scope::lane) << code;
        EXPECT_THAT(outcome.error, StartsWith("stream \"video.events\": HTTP 400 "));
    }
    for (const char* code : {"KMSThrottlingException", "LimitExceededException"}) {
        peer_.then(error(400, code));
        EXPECT_EQ(send(batch(2)).fate, Fate::throttled) << code;
    }
    for (const char* code : {"ValidationException", "InvalidArgumentException"}) {
        peer_.then(error(400, code));
        outcome = send(batch(2));
        EXPECT_EQ(outcome.fate, Fate::refused) << code;
        EXPECT_FALSE(outcome.permanent) << code;
    }
    peer_.then(error(400, "ExpiredTokenException"));
    outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::destination);
    peer_.then(error(500, "InternalFailureException"));
    EXPECT_EQ(send(batch(2)).fate, Fate::failed);
}

TEST_F(KinesisSinkTest, ReadsTheWholeAnswerToALargeBatch) {
    create(kinesis);
    std::vector<std::string> entries;
    const std::string shard(128, 's'), number(128, '7');
    for (int i = 0; i < 500; i++)
        entries.push_back(R"({"SequenceNumber":")" + number + R"(","ShardId":")" + shard +
                          R"(","ErrorCode":"","ErrorMessage":")" + std::string(300, 'e') + "\"}");
    peer_.then(results(entries));
    const Outcome outcome = send(batch(500));
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
}

TEST_F(KinesisSinkTest, AnyAnswerHasAnOutcome) {
    create(kinesis);
    Mutations bodies({R"({"Records":[)" + taken(0) + "," + failed("InternalFailure") + "]}",
                      R"({"__type":"ResourceNotFoundException","message":"no"})"},
                     "{}[]\",:\\0u\xff");
    for (int i = 0; i < 300; i++) {
        const std::string body = bodies.next();
        peer_.then(answer(i % 3 == 0 ? 400 : 200, body));
        const Outcome outcome = send(batch(2));
        EXPECT_TRUE(outcome.of_events.empty() || outcome.of_events.size() == 2) << body;
    }
}

}  // namespace
}  // namespace outbox
