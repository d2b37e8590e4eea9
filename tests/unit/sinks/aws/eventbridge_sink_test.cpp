// The eventbridge sink against a scripted server on loopback.
#include <gmock/gmock.h>

#include "driven_aws_sink.hpp"
#include "net/json.hpp"
#include "sinks/aws/eventbridge_entry.hpp"
#include "unit/mutations.hpp"

namespace outbox {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* eventbridge = "eventbridge://eu-west-1";

std::string taken(int number) {
    return R"({"EventId":"e)" + std::to_string(number) + "\"}";
}

std::string failed(const std::string& code) {
    return R"({"ErrorCode":")" + code + R"(","ErrorMessage":"not this one"})";
}

Reply results(const std::vector<std::string>& entries) {
    std::string body = R"({"FailedEntryCount":0,"Entries":[)";
    for (const std::string& entry : entries)
        body += (body.back() == '[' ? "" : ",") + entry;
    return answer(200, body + "]}");
}

Reply error(int status, const std::string& code, const std::string& headers = "") {
    return answer(status, R"({"__type":")" + code + R"(","message":"no"})", headers);
}

Reply bus_exists() {
    return answer(200, R"({"Name":"b","Arn":"arn:aws:events:eu-west-1:123456789012:event-bus/b"})");
}

class EventBridgeSinkTest : public DrivenAwsSink {
  protected:
    Json::Value last_request() {
        const auto json = parse_json(body_of(peer_.requests().back()));
        EXPECT_TRUE(json) << peer_.requests().back();
        return json.value_or(Json::Value());
    }
    std::vector<std::string> actions() {
        std::vector<std::string> found;
        for (const std::string& request : peer_.requests()) {
            const std::string name = "X-Amz-Target: AWSEvents.";
            const std::size_t begin = request.find(name) + name.size();
            found.push_back(request.substr(begin, request.find('\r', begin) - begin));
        }
        return found;
    }
};

// -------------------------------------------------------------------------------------------------
// Requests
// -------------------------------------------------------------------------------------------------

TEST_F(EventBridgeSinkTest, SendsABatchToTheDefaultBus) {
    create(eventbridge, {{"receipts", "on"}});
    peer_.then(results({taken(0), taken(1)}));
    const Outcome outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_THAT(outcome.message_ids, testing::ElementsAre("e0", "e1"));

    const std::string request = peer_.requests().front();
    EXPECT_THAT(request, HasSubstr("\r\nContent-Type: application/x-amz-json-1.1\r\n"));
    EXPECT_THAT(request, HasSubstr("\r\nX-Amz-Target: AWSEvents.PutEvents\r\n"));
    EXPECT_THAT(request, HasSubstr("/eu-west-1/events/aws4_request, "));
    const Json::Value body = last_request();
    ASSERT_EQ(body["Entries"].size(), 2u);
    const Json::Value& entry = body["Entries"][1];
    EXPECT_EQ(entry["EventBusName"], "default");
    EXPECT_EQ(entry["Source"], "shop.video");
    EXPECT_EQ(entry["DetailType"], "video.created");
    EXPECT_EQ(entry["Time"], 1'800'000'000);
    EXPECT_FALSE(entry.isMember("TraceHeader"));
    const auto detail = parse_json(entry["Detail"].asString());
    ASSERT_TRUE(detail);
    EXPECT_EQ((*detail)["id"], sample_id);
    EXPECT_EQ((*detail)["data"]["n"], 1);
}

TEST_F(EventBridgeSinkTest, SendsThePayloadAlone) {
    static constexpr Header headers[] = {
        {"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}};
    create(eventbridge, {{"format", "payload"}, {"source", "com.example.{topic}"}});
    event().payload = " {\"a\":\"\\u00e9\"}\n";
    events_[0].headers = headers;
    peer_.then(results({taken(0)}));
    EXPECT_EQ(send(batch({&events_[0]})).fate, Fate::confirmed);
    const Json::Value entry = last_request()["Entries"][0];
    EXPECT_EQ(entry["Detail"], " {\"a\":\"\\u00e9\"}\n");
    EXPECT_EQ(entry["Source"], "com.example.video.events");
    EXPECT_EQ(entry["TraceHeader"],
              "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1");
}

TEST_F(EventBridgeSinkTest, APayloadThatIsNoObjectIsRefusedInThatFormat) {
    create(eventbridge, {{"format", "payload"}});
    for (const char* payload : {"", "7", "[{}]", "\"{}\"", "{", "{} {}", "x{}", "{\"a\":\xff}"}) {
        event().payload = payload;
        const Outcome outcome = send(batch({&events_.back()}));
        EXPECT_EQ(outcome.fate, Fate::refused) << payload;
        EXPECT_TRUE(outcome.permanent) << payload;
        EXPECT_THAT(outcome.error, HasSubstr("not a JSON object"));
    }
    EXPECT_TRUE(peer_.requests().empty());
}

TEST(TraceHeader, IsMadeOfAValidTraceparent) {
    EXPECT_EQ(trace_header_of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
              "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=0");
    EXPECT_THAT(trace_header_of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0b"),
                testing::EndsWith(";Sampled=1"));
    for (const char* text :
         {"", "00-1-2-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"})
        EXPECT_EQ(trace_header_of(text), "");
}

TEST_F(EventBridgeSinkTest, DeclaresItsCapabilities) {
    create(eventbridge, {{"batch_size", "100"}});
    const Capabilities capabilities = sink_->capabilities();
    EXPECT_EQ(capabilities.max_batch_events, 10u);
    EXPECT_EQ(capabilities.max_batch_bytes, 1024u * 1024);
    EXPECT_EQ(capabilities.keys, KeyPolicy::mixed);
    EXPECT_FALSE(capabilities.lanes);
    create(eventbridge, {{"event_bus", "{topic}"}});
    EXPECT_TRUE(sink_->capabilities().lanes);
    EXPECT_EQ(lane(event()), "video.events");
}

// -------------------------------------------------------------------------------------------------
// Buses
// -------------------------------------------------------------------------------------------------

TEST_F(EventBridgeSinkTest, LooksForABusBeforeTheFirstBatchOnly) {
    create(eventbridge, {{"event_bus", "orders"}});
    peer_.then(bus_exists());
    peer_.then(results({taken(0)}));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    peer_.then(results({taken(0)}));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    EXPECT_THAT(actions(), testing::ElementsAre("DescribeEventBus", "PutEvents", "PutEvents"));
    EXPECT_EQ(body_of(peer_.requests().front()), R"({"Name":"orders"})");
    EXPECT_EQ(last_request()["Entries"][0]["EventBusName"], "orders");
}

TEST_F(EventBridgeSinkTest, NamesABusOfAnAccountByItsArn) {
    create("eventbridge://us-gov-west-1/123456789012");
    const std::string arn = "arn:aws-us-gov:events:us-gov-west-1:123456789012:event-bus/default";
    peer_.then(bus_exists());
    peer_.then(results({taken(0)}));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    EXPECT_EQ(body_of(peer_.requests().front()), R"({"Name":")" + arn + "\"}");
    EXPECT_EQ(last_request()["Entries"][0]["EventBusName"], arn);
}

TEST_F(EventBridgeSinkTest, SendsNothingToABusThatDoesNotExist) {
    create(eventbridge, {{"event_bus", "orders"}});
    for (int i = 0; i < 2; i++) {
        peer_.then(error(400, "ResourceNotFoundException"));
        const Outcome outcome = send(batch(1));
        EXPECT_EQ(outcome.fate, Fate::unavailable);
        EXPECT_EQ(outcome.scope, Scope::lane);
        EXPECT_THAT(outcome.error, StartsWith("event bus \"orders\": HTTP 400 ResourceNotFound"));
    }
    EXPECT_THAT(actions(), testing::ElementsAre("DescribeEventBus", "DescribeEventBus"));
}

TEST_F(EventBridgeSinkTest, ALookThatFailsBlamesNoEvent) {
    create(eventbridge, {{"event_bus", "orders"}});
    peer_.then(error(400, "AccessDeniedException"));
    Outcome outcome = send(batch(1));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.error, HasSubstr("events:DescribeEventBus"));
    EXPECT_THAT(outcome.error, HasSubstr("verify_bus"));
    peer_.then(error(400, "ThrottlingException", "Retry-After: 7\r\n"));
    outcome = send(batch(1));
    EXPECT_EQ(outcome.fate, Fate::throttled);
    EXPECT_EQ(outcome.retry_after, seconds(7));
    for (const Reply& reply :
         {error(500, "InternalException"), error(400, "ValidationException")}) {
        peer_.then(reply);
        outcome = send(batch(1));
        EXPECT_EQ(outcome.fate, Fate::unavailable);
        EXPECT_EQ(outcome.scope, Scope::lane);
        EXPECT_FALSE(outcome.permanent);
    }
    peer_.then(error(400, "ExpiredTokenException"));
    outcome = send(batch(1));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::destination);
}

TEST_F(EventBridgeSinkTest, LooksAgainWhenABatchFindsNoBus) {
    create(eventbridge, {{"event_bus", "orders"}});
    peer_.then(bus_exists());
    peer_.then(error(400, "ResourceNotFoundException"));
    EXPECT_EQ(send(batch(1)).fate, Fate::unavailable);
    peer_.then(bus_exists());
    peer_.then(results({taken(0)}));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    EXPECT_THAT(actions(), testing::ElementsAre("DescribeEventBus", "PutEvents", "DescribeEventBus",
                                                "PutEvents"));
}

TEST_F(EventBridgeSinkTest, DoesNotCheckTheBusIfTheOptionIsOff) {
    create(eventbridge, {{"event_bus", "orders"}, {"verify_bus", "off"}});
    peer_.then(results({taken(0)}));
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    EXPECT_THAT(actions(), testing::ElementsAre("PutEvents"));
}

// -------------------------------------------------------------------------------------------------
// Limits
// -------------------------------------------------------------------------------------------------

TEST_F(EventBridgeSinkTest, SendsEntriesOfTheLargestSizeAndNoLargerOnes) {
    create(eventbridge, {{"format", "payload"}, {"source", "s"}});
    // Time, source, detail type, and the braces and quotes of the detail.
    const std::size_t around = 14 + 1 + std::string("video.created").size() + 7;
    std::string payload = R"({"a":")" + std::string(1024 * 1024 - around - 1, 'x') + "\"}";
    event().payload = payload;
    peer_.then(results({taken(0)}));
    Outcome outcome = send(batch({&events_[0]}));
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    payload.insert(6, "x");
    events_[0].payload = payload;
    outcome = send(batch({&events_[0]}));
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_TRUE(outcome.permanent);
    EXPECT_EQ(outcome.error, "the entry has 1048577 bytes, EventBridge takes at most 1048576");
}

TEST_F(EventBridgeSinkTest, AnEventTypeThatWouldBeDroppedIsRefused) {
    create(eventbridge);
    const std::string longest(128, 't'), longer(129, 't');
    event().event_type = longest;
    peer_.then(results({taken(0)}));
    EXPECT_EQ(send(batch({&events_[0]})).fate, Fate::confirmed);
    events_[0].event_type = longer;
    const Outcome outcome = send(batch({&events_[0]}));
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_TRUE(outcome.permanent);
    EXPECT_THAT(outcome.error, HasSubstr("the event type has 129 characters"));
}

TEST_F(EventBridgeSinkTest, TheBoundOfASizeIsNeverTooSmall) {
    const std::string text = "{topic}{topic}{database}-{aggregate_type}{event_type}";
    for (const EventFormat format : {EventFormat::structured, EventFormat::payload})
        for (const std::size_t size : {1, 30, 100}) {
            const std::string odd(size, 'x');
            Event event = sample_event();
            event.topic = event.aggregate_type = event.event_type = odd;
            const EntryStyle style{format, "/shop/", TextTemplate::parse(text).value(), text.size(),
                                   "a database"};
            EventBridgeEntry entry;
            EXPECT_EQ(entry.assign(event, style), std::nullopt);
            EXPECT_LE(entry.size(), entry_size_bound(event, style));
        }
}

// -------------------------------------------------------------------------------------------------
// Outcomes
// -------------------------------------------------------------------------------------------------

TEST_F(EventBridgeSinkTest, EachEntryHasAnOutcomeOfItsOwn) {
    create(eventbridge);
    peer_.then(results({taken(0), failed("ThrottlingException"), failed("InternalFailure"),
                        failed("MalformedDetail"), failed("InvalidArgument"),
                        failed("NotAuthorizedForSourceException"), failed("AccessDeniedException"),
                        "{}"}));
    const Outcome outcome = send(batch(8));
    ASSERT_EQ(outcome.of_events.size(), 8u);
    const auto is = [&](std::size_t i, Fate fate, bool permanent = false) {
        EXPECT_EQ(outcome.of_events[i].fate, fate) << i;
        EXPECT_EQ(outcome.of_events[i].permanent, permanent) << i;
    };
    is(0, Fate::confirmed);
    is(1, Fate::throttled);
    is(2, Fate::failed);
    is(3, Fate::refused, true);
    is(4, Fate::refused);
    is(5, Fate::refused);
    is(6, Fate::unavailable);
    EXPECT_EQ(outcome.of_events[6].scope, Scope::lane);
    is(7, Fate::failed);
    EXPECT_EQ(outcome.of_events[3].error, "event bus \"default\": MalformedDetail: not this one");
}

TEST_F(EventBridgeSinkTest, AnAnswerWithAnotherNumberOfResultsConfirmsNothing) {
    create(eventbridge);
    for (const std::vector<std::string>& entries :
         {std::vector<std::string>{}, {taken(0)}, {taken(0), taken(1), taken(2)}}) {
        peer_.then(results(entries));
        const Outcome outcome = send(batch(2));
        EXPECT_EQ(outcome.fate, Fate::failed);
        EXPECT_THAT(outcome.error, HasSubstr("malformed"));
    }
}

TEST_F(EventBridgeSinkTest, AnyAnswerHasAnOutcome) {
    create(eventbridge, {{"event_bus", "orders"}});
    Mutations bodies({R"({"Entries":[)" + taken(0) + "," + failed("InternalFailure") + "]}",
                      R"({"__type":"ResourceNotFoundException","message":"no"})"},
                     "{}[]\",:\\0u\xff");
    for (int i = 0; i < 300; i++) {
        const std::string body = bodies.next();
        if (i % 3 != 0)
            peer_.then(bus_exists());
        peer_.then(answer(i % 3 == 0 ? 400 : 200, body));
        const Outcome outcome = send(batch(2));
        EXPECT_TRUE(outcome.of_events.empty() || outcome.of_events.size() == 2) << body;
    }
}

}  // namespace
}  // namespace outbox
