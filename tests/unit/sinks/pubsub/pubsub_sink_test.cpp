// The pubsub sink against a scripted server on loopback.
#include <gtest/gtest.h>

#include <deque>

#include "core/sink.hpp"
#include "net/json.hpp"
#include "unit/cloud/google/service_account_key.hpp"
#include "unit/drive.hpp"
#include "unit/mutations.hpp"
#include "unit/sample_event.hpp"
#include "unit/scripted_peer.hpp"

namespace outbox {
namespace {

Reply reply(int status, const std::string& body, const std::string& headers = "") {
    return {.bytes = "HTTP/1.1 " + std::to_string(status) + " x\r\n" + headers +
                     "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body};
}

Reply published(int count) {
    std::string ids;
    for (int i = 0; i < count; i++)
        ids += (i == 0 ? "\"" : ",\"") + std::to_string(i + 1) + "\"";
    return reply(200, R"({"messageIds":[)" + ids + "]}");
}

Reply error(int http, const std::string& status, const std::string& headers = "") {
    return reply(http, R"({"error":{"message":"so it is","status":")" + status + R"("}})", headers);
}

std::string line(const std::string& request) {
    return request.substr(0, request.find("\r\n"));
}
std::string body(const std::string& request) {
    return request.substr(request.find("\r\n\r\n") + 4);
}

class PubsubSink : public DrivenSink {
  protected:
    void create(std::vector<Option> options = {}, std::vector<Option> mapping = {}) {
        const std::string url = peer_.url();
        const std::string host = url.substr(7, url.rfind('/') - 7);
        if (mapping.empty())
            options.push_back({"emulator_host", host});
        options.push_back(
            {"url", "pubsub://p" + (mapping.empty() ? "" : "?endpoint=http://" + host)});
        make(options, mapping);
    }

    Batch& batch(std::size_t count = 1) {
        Batch& batch = batches_.emplace_back();
        for (std::size_t i = 0; i < count; i++)
            batch.events.push_back(&samples_.emplace_back().event);
        return batch;
    }

    Outcome send_one() { return send(batch()); }

    ScriptedPeer peer_;
    std::deque<SampleEvent> samples_;
    std::deque<Batch> batches_;
};

TEST_F(PubsubSink, PublishesABatchWithOneRequest) {
    create();
    peer_.then(published(3));
    const Outcome outcome = send(batch(3));
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_TRUE(outcome.message_ids.empty());  // receipts are not kept
    ASSERT_EQ(peer_.requests().size(), 1u);
    const std::string request = peer_.requests().front();
    EXPECT_EQ(line(request), "POST /v1/projects/p/topics/video.events:publish HTTP/1.1");
    EXPECT_NE(request.find("\r\nContent-Type: application/json\r\n"), std::string::npos);
    EXPECT_EQ(request.find("Authorization"), std::string::npos);
    EXPECT_EQ(parse_json(body(request)).value_or(Json::Value())["messages"].size(), 3u);
}

TEST_F(PubsubSink, ReportsMessageIdsIfReceiptsAreKept) {
    create({{"receipts", "on"}});
    peer_.then(published(3));
    EXPECT_EQ(send(batch(3)).message_ids, (std::vector<std::string>{"1", "2", "3"}));
}

TEST_F(PubsubSink, AnAnswerThatDoesNotMatchIsAFailure) {
    create();
    peer_.then(published(2));
    Outcome outcome = send(batch(3));
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_EQ(outcome.error, "the answer has 2 message ids for 3 messages");
    peer_.then(reply(200, "<html>hello</html>"));
    outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_EQ(outcome.error, "the answer has no message ids");
    peer_.then({.bytes = "HTTP/1.1 204 x\r\n\r\n"});
    EXPECT_NE(send_one().fate, Fate::confirmed);
}

TEST_F(PubsubSink, TheTopicIsMadeFromTheTemplate) {
    create({{"topic", "{database}-{aggregate_type}%1"}});
    peer_.then(published(1));
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(line(peer_.requests().front()),
              "POST /v1/projects/p/topics/shop-video%251:publish HTTP/1.1");
    EXPECT_TRUE(sink_->capabilities().lanes);
    std::string lane;
    sink_->lane_of(samples_.front().event, lane);
    EXPECT_EQ(lane, "shop-video%1");
    create({{"topic", "all-of-{database}"}});
    EXPECT_FALSE(sink_->capabilities().lanes);
}

TEST_F(PubsubSink, Capabilities) {
    create();
    EXPECT_EQ(sink_->capabilities().max_batch_events, 1000u);
    EXPECT_EQ(sink_->capabilities().max_batches, 32u);
    EXPECT_EQ(sink_->capabilities().keys, KeyPolicy::alone);
    create({{"batch_size", "5000"}, {"max_connections", "3"}});
    EXPECT_EQ(sink_->capabilities().max_batch_events, 1000u);
    EXPECT_EQ(sink_->capabilities().max_batches, 3u);
    create({{"batch_size", "10"}});
    EXPECT_EQ(sink_->capabilities().max_batch_events, 10u);
}

TEST_F(PubsubSink, AnInvalidTopicIsTheEventsFaultOnlyIfTheEventNamesIt) {
    create();
    const std::string longest(255, 't');
    for (const std::string& good : {std::string("abc"), longest, std::string("a-_.~+%9")}) {
        Batch& sent = batch();
        sent.events.front()->topic = good;
        peer_.then(published(1));
        EXPECT_EQ(send(sent).fate, Fate::confirmed) << good;
    }
    for (const std::string& bad :
         {std::string("ab"), longest + "t", std::string("1abc"), std::string("a b c"),
          std::string("googlish"), std::string("a/b")}) {
        Batch& sent = batch();
        sent.events.front()->topic = bad;
        const Outcome outcome = send(sent);
        EXPECT_EQ(outcome.fate, Fate::refused) << bad;
        EXPECT_TRUE(outcome.permanent);
        EXPECT_TRUE(outcome.error.starts_with("\"" + bad.substr(0, 255))) << outcome.error;
    }
    EXPECT_EQ(peer_.requests().size(), 3u);
    create({{"topic", "x"}});
    EXPECT_EQ(send_one().fate, Fate::unavailable);
}

TEST_F(PubsubSink, AnEventThatBreaksALimitIsNotSent) {
    create();
    Batch& sent = batch(2);
    samples_.back().add("google", "v");
    const Outcome outcome = send(sent);
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_TRUE(outcome.permanent);
    EXPECT_EQ(outcome.error, "attribute \"google\" has a reserved name: it starts with \"goog\"");
    EXPECT_EQ(peer_.connections(), 0);
}

TEST_F(PubsubSink, ErrorsNameTheStatusAndTheTopic) {
    create();
    peer_.then(error(404, "NOT_FOUND"));
    Outcome outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_EQ(outcome.error, "topic \"video.events\": NOT_FOUND: so it is");
    peer_.then(error(400, "INVALID_ARGUMENT"));
    outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_FALSE(outcome.permanent);
    peer_.then({.bytes = "", .close = true});
    outcome = send_one();
    EXPECT_EQ(outcome.error.find("topic"), std::string::npos) << outcome.error;
}

TEST_F(PubsubSink, ObeysRetryAfter) {
    create();
    peer_.then(error(429, "RESOURCE_EXHAUSTED", "Retry-After: 7\r\n"));
    const Outcome outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::throttled);
    EXPECT_EQ(outcome.retry_after, seconds(7));
}

// -- create_topics ----------------------------------------------------------------------------

TEST_F(PubsubSink, CreatesATopicThatIsMissing) {
    create({{"create_topics", "on"}});
    for (const Reply& created : {reply(200, R"({"name":"projects/p/topics/video.events"})"),
                                 error(409, "ALREADY_EXISTS")}) {
        const std::size_t before = peer_.requests().size();
        peer_.then(error(404, "NOT_FOUND"));
        peer_.then(created);
        peer_.then(published(2));
        const Outcome outcome = send(batch(2));
        EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
        const std::vector<std::string> requests = peer_.requests();
        ASSERT_EQ(requests.size(), before + 3);
        EXPECT_EQ(line(requests[before + 1]), "PUT /v1/projects/p/topics/video.events HTTP/1.1");
        EXPECT_EQ(body(requests[before + 1]), "{}");
        EXPECT_EQ(requests[before + 2], requests[before]);
    }
}

TEST_F(PubsubSink, SaysWhyATopicCouldNotBeCreated) {
    create({{"create_topics", "on"}});
    peer_.then(error(404, "NOT_FOUND"));
    peer_.then(error(403, "PERMISSION_DENIED"));
    Outcome outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.error,
              "topic \"video.events\" could not be created: PERMISSION_DENIED: so it is");
    // The topic exists and is missing at the same time: the sink must not loop.
    peer_.then(error(404, "NOT_FOUND"));
    peer_.then(error(409, "ALREADY_EXISTS"));
    peer_.then(error(404, "NOT_FOUND"));
    outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_EQ(outcome.error, "topic \"video.events\": NOT_FOUND: so it is");
    peer_.then(error(404, "NOT_FOUND"));
    peer_.then(reply(500, ""));
    EXPECT_EQ(send_one().fate, Fate::unavailable);
    EXPECT_EQ(peer_.requests().size(), 7u);
}

TEST_F(PubsubSink, CreatesNothingUnlessToldTo) {
    create();
    peer_.then(error(404, "NOT_FOUND"));
    send_one();
    EXPECT_EQ(peer_.requests().size(), 1u);
}

// -- credentials ------------------------------------------------------------------------------

TEST_F(PubsubSink, SendsATokenAndNeverShowsIt) {
    create({}, {{"token", "secret"}});
    peer_.then(error(401, "UNAUTHENTICATED"));
    const Outcome outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.error.find("secret"), std::string::npos) << outcome.error;
    EXPECT_NE(peer_.requests().front().find("\r\nAuthorization: Bearer secret\r\n"),
              std::string::npos);
}

TEST_F(PubsubSink, SignsAnotherTokenWhenOneIsRejected) {
    create({}, {{"key", key_file()}});
    const auto authorization = [](const std::string& request) {
        const std::size_t begin = request.find("\r\nAuthorization: Bearer ey");
        EXPECT_NE(begin, std::string::npos);
        return request.substr(begin, request.find("\r\n", begin + 2) - begin);
    };
    peer_.then(published(1));
    peer_.then(error(401, "UNAUTHENTICATED"));
    peer_.then(published(1));
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(send_one().fate, Fate::unavailable);
    const Micros then = clock_.unix_now() / seconds(1);
    // A token contains the second in which it was made.
    while (clock_.unix_now() / seconds(1) == then)
        poll(nullptr, 0, 10);
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    const std::vector<std::string> requests = peer_.requests();
    EXPECT_EQ(authorization(requests[0]), authorization(requests[1]));
    EXPECT_NE(authorization(requests[1]), authorization(requests[2]));
}

TEST_F(PubsubSink, SendsNothingWithoutTheCredentialsItNeeds) {
    create({}, {{"key", "no key"}});
    const Outcome outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.error,
              "option \"key\" is not the key of a service account: it is not a JSON object");
    EXPECT_EQ(peer_.connections(), 0);
}

// -- random input ---------------------------------------------------------------------------

TEST_F(PubsubSink, TakesAnyAnswer) {
    create({{"create_topics", "on"}, {"request_timeout", "50ms"}});
    Mutations answers({published(1).bytes, error(404, "NOT_FOUND").bytes,
                       error(409, "ALREADY_EXISTS").bytes, reply(200, "{}").bytes},
                      "\r\n {}[]\":,0");
    for (int i = 0; i < 500; i++) {
        for (int n = 0; n < 3; n++)
            peer_.then({.bytes = answers.next(), .close = true});
        send_one();
    }
}

TEST_F(PubsubSink, CanBeDestroyedWhileRequestsAreUnderWay) {
    create();
    for (int i = 0; i < 8; i++) {
        peer_.then({.bytes = i % 2 == 0 ? "" : "HTTP/1.1 2"});
        sink_->submit(batch());
    }
    std::vector<Outcome> none;
    sink_->step(clock_.now(), none);
    sink_.reset();
}

}  // namespace
}  // namespace outbox
