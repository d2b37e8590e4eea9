// The kafka sink against librdkafka's mock cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <set>

#include "core/check.hpp"
#include "core/sink.hpp"
#include "unit/drive.hpp"
#include "unit/sample_event.hpp"
#include "unit/scripted_peer.hpp"
#include "unit/sinks/kafka/mock_cluster.hpp"

extern "C" outbox::Check* OUTBOX_CREATE_CHECK(const outbox::CheckContext& context) noexcept;

namespace outbox {
namespace {

using testing::HasSubstr;

class KafkaSink : public DrivenSink {
  protected:
    void create(std::vector<Option> options = {}, std::vector<Option> mapping = {},
                const std::string& allowed_hosts = "127.0.0.1") {
        options.push_back({"url", "kafka://" + cluster_.brokers()});
        make(options, mapping, allowed_hosts);
    }

    // A new producer has to ask three things before it sends, so its first records travel together. The
    // first one might go alone otherwise, and the mock cluster, unlike Kafka, would take those behind
    // it though it was refused.
    void create_with_slow_answers() {
        for (int broker = 1; broker <= 3; broker++)
            rd_kafka_mock_broker_set_rtt(cluster_.get(), broker, 100);
        create();
    }

    Batch& batch(std::size_t count = 1) {
        Batch& batch = batches_.emplace_back();
        for (std::size_t i = 0; i < count; i++)
            batch.events.push_back(&samples_.emplace_back().event);
        return batch;
    }

    // Events 1, 2, ... of the keys in turn; the payload is the number.
    Batch& numbered(std::size_t count, std::size_t keys, std::size_t first = 1) {
        Batch& made = batch(count);
        for (std::size_t i = 0; i < count; i++) {
            Event& event = *made.events[i];
            event.ordering_key = texts_.emplace_back("k" + std::to_string(i % keys));
            event.payload = texts_.emplace_back(std::to_string(first + i));
        }
        return made;
    }

    // Sends it again until it is confirmed, as the pipeline does.
    void send_until_confirmed(Batch& batch) {
        for (int attempt = 0; attempt < 20; attempt++) {
            const Outcome outcome = send(batch);
            if (outcome.fate == Fate::confirmed && outcome.of_events.empty())
                return;
            std::vector<Event*> left;
            for (std::size_t i = 0; i < outcome.of_events.size(); i++)
                if (outcome.of_events[i].fate != Fate::confirmed)
                    left.push_back(batch.events[i]);
            if (!outcome.of_events.empty())
                batch.events = left;
        }
        ADD_FAILURE() << "not confirmed";
    }

    // The first arrivals of each key are in order, and so many events have arrived.
    void expect_in_order(std::size_t count) {
        std::set<std::string> seen;
        std::map<std::string, long> last;
        for (const MockRecord& record : cluster_.records("video.events")) {
            if (!seen.insert(*record.value).second)
                continue;
            const long number = std::stol(*record.value);
            EXPECT_GT(number, last[record.key]) << "of key " << record.key;
            last[record.key] = number;
        }
        EXPECT_EQ(seen.size(), count);
    }

    std::vector<Finding> check(const std::vector<std::string>& topics) {
        const std::unique_ptr<Check> check(OUTBOX_CREATE_CHECK({destination_, clock_, topics}));
        std::vector<Finding> findings;
        while (!check->step(clock_.now(), findings)) {
            pollfd watched{check->descriptor(), POLLIN, 0};
            if (poll(&watched, 1, static_cast<int>(patience / 1000)) <= 0) {
                ADD_FAILURE() << "the check does not end";
                break;
            }
        }
        return findings;
    }

    MockCluster cluster_{3};
    std::deque<SampleEvent> samples_;
    std::deque<std::string> texts_;
    std::deque<Batch> batches_;
};

static std::int64_t milliseconds_now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

// By the time of an old event a broker could delete the record before it is read.
TEST_F(KafkaSink, ARecordHasTheTimeAtWhichItIsSent) {
    cluster_.add_topic("video.events");
    create();
    const std::int64_t began = milliseconds_now();
    EXPECT_EQ(send(batch(1)).fate, Fate::confirmed);
    const std::vector<MockRecord> records = cluster_.records("video.events");
    ASSERT_EQ(records.size(), 1u);
    EXPECT_GE(records[0].timestamp, began);
    EXPECT_LE(records[0].timestamp, milliseconds_now());
}

TEST_F(KafkaSink, ConfirmsWhatTheBrokerHasTaken) {
    cluster_.add_topic("video.events");
    create({{"timestamp", "occurred"}});
    const Outcome outcome = send(batch(3));
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_TRUE(outcome.of_events.empty());
    EXPECT_TRUE(outcome.message_ids.empty());  // nobody wants to know
    const std::vector<MockRecord> records = cluster_.records("video.events");
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records[0].key, "v1");
    EXPECT_EQ(records[0].value, R"({"title": "Cats"})");
    EXPECT_EQ(records[0].timestamp, 1'700'000'000'123);
    EXPECT_EQ(records[0].headers.front().second, "00112233-4455-6677-8899-aabbccddeeff");
}

TEST_F(KafkaSink, KnowsTheOffsetsWhereReceiptsAreKept) {
    cluster_.add_topic("video.events", 1);
    create({{"receipts", "on"}});
    EXPECT_EQ(send(batch(2)).message_ids, (std::vector<std::string>{"0/0", "0/1"}));
}

TEST_F(KafkaSink, AnEventWithoutPayloadHasNoValueAndOneWithoutKeyNoKey) {
    cluster_.add_topic("video.events", 1);
    create();
    Batch& sent = batch(2);
    sent.events[0]->has_payload = false;
    sent.events[0]->payload = {};
    sent.events[1]->payload = {};
    sent.events[1]->ordering_key = {};
    EXPECT_EQ(send(sent).fate, Fate::confirmed);
    const std::vector<MockRecord> records = cluster_.records("video.events", 1);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].value, std::nullopt);
    EXPECT_EQ(records[1].value, "");
    EXPECT_EQ(records[1].key, "");
}

TEST_F(KafkaSink, TheTopicIsMadeFromTheTemplate) {
    cluster_.add_topic("shop-video");
    create({{"topic", "{database}-{aggregate_type}"}});
    EXPECT_EQ(send(batch()).fate, Fate::confirmed);
    EXPECT_EQ(cluster_.records("shop-video").size(), 1u);
    EXPECT_TRUE(sink_->capabilities().lanes);
    std::string lane;
    sink_->lane_of(samples_.front().event, lane);
    EXPECT_EQ(lane, "shop-video");
    create({{"topic", "all-of-{database}"}});
    EXPECT_FALSE(sink_->capabilities().lanes);
}

TEST_F(KafkaSink, AnInvalidTopicIsRefusedOnlyIfItComesFromTheEvent) {
    create();
    Batch& sent = batch();
    sent.events.front()->topic = "a b";
    Outcome outcome = send(sent);
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_TRUE(outcome.permanent);
    create({{"topic", "a b"}});
    outcome = send(batch());
    EXPECT_EQ(outcome.fate, Fate::unavailable);
}

TEST_F(KafkaSink, AHeaderNamesThePartition) {
    cluster_.add_topic("video.events", 4);
    create({{"partition_header", "partition"}});
    EXPECT_EQ(send(batch()).of_events.front().fate, Fate::refused);
    Batch& sent = batch();
    samples_.back().add("partition", "2", Header::Kind::literal);
    EXPECT_EQ(send(sent).fate, Fate::confirmed);
    ASSERT_EQ(cluster_.records("video.events").size(), 1u);
    EXPECT_EQ(cluster_.records("video.events").front().partition, 2);
    Batch& nowhere = batch();
    samples_.back().add("partition", "99", Header::Kind::literal);
    const Outcome outcome = send(nowhere);
    ASSERT_EQ(outcome.of_events.size(), 1u);
    EXPECT_EQ(outcome.of_events.front().fate, Fate::refused);
    EXPECT_FALSE(outcome.of_events.front().permanent) << "there may be more of them later";
}

TEST_F(KafkaSink, OfABatchOnlyTheEventThatIsTooLargeIsRefused) {
    cluster_.add_topic("video.events");
    create();
    const std::string too_large(1'000'001, 'x');
    Batch& sent = numbered(4, 2);
    sent.events[1]->payload = too_large;
    const Outcome outcome = send(sent);
    ASSERT_EQ(outcome.of_events.size(), 4u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::confirmed);
    EXPECT_EQ(outcome.of_events[1].fate, Fate::refused);
    EXPECT_TRUE(outcome.of_events[1].permanent);
    EXPECT_EQ(outcome.of_events[2].fate, Fate::confirmed);
    EXPECT_EQ(outcome.of_events[3].fate, Fate::undone) << "it is of the same key";
}

TEST_F(KafkaSink, WhatABrokerRefusesTogetherIsSentOneByOne) {
    cluster_.add_topic("video.events", 1);
    create_with_slow_answers();
    Batch& sent = numbered(3, 3);
    cluster_.fail({RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE});
    Outcome outcome = send(sent);
    EXPECT_EQ(outcome.fate, Fate::undone) << outcome.error;
    cluster_.fail({RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE});
    outcome = send(sent);
    ASSERT_EQ(outcome.of_events.size(), 3u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::refused);
    EXPECT_TRUE(outcome.of_events[0].permanent);
    for (const std::size_t other : {1, 2})
        EXPECT_NE(outcome.of_events[other].fate, Fate::refused);
}

TEST_F(KafkaSink, AForbiddenTopicFailsItsLane) {
    cluster_.add_topic("video.events");
    create();
    cluster_.fail({RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED});
    const Outcome outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.error, HasSubstr("video.events"));
    EXPECT_EQ(send(batch()).fate, Fate::confirmed) << "by another producer";
}

TEST_F(KafkaSink, AMissingTopicFailsItsLane) {
    cluster_.add_topic("video.events");
    create();
    EXPECT_EQ(send(batch()).fate, Fate::confirmed);
    rd_kafka_mock_topic_set_error(cluster_.get(), "other", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    Batch& missing = batch(2);
    for (Event* event : missing.events)
        event->topic = "other";
    const Outcome outcome = send(missing);
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.error, HasSubstr("other"));
    EXPECT_EQ(send(batch()).fate, Fate::confirmed) << "others go on";
}

TEST_F(KafkaSink, AnErrorThatTheLibraryRetriesIsNotAFailure) {
    cluster_.add_topic("video.events");
    create_with_slow_answers();
    cluster_.fail({RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
                   RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT});
    EXPECT_EQ(send(numbered(200, 20)).fate, Fate::confirmed);
    EXPECT_EQ(cluster_.records("video.events").size(), 200u);
    expect_in_order(200);
}

TEST_F(KafkaSink, LostConnectionsLoseAndReorderNothing) {
    cluster_.add_topic("video.events");
    std::size_t sent = 0;
    for (int round = 0; round < 5; round++) {
        create_with_slow_answers();
        cluster_.fail({RD_KAFKA_RESP_ERR_NO_ERROR, RD_KAFKA_RESP_ERR__TRANSPORT,
                       RD_KAFKA_RESP_ERR__TRANSPORT});
        send_until_confirmed(numbered(100, 7, sent + 1));
        sent += 100;
    }
    expect_in_order(sent);
}

TEST_F(KafkaSink, AProducerThatLostCountIsReplaced) {
    cluster_.add_topic("video.events");
    create_with_slow_answers();
    cluster_.fail({RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER});
    send_until_confirmed(numbered(10, 3));
    EXPECT_EQ(send(numbered(10, 3, 11)).fate, Fate::confirmed);
    expect_in_order(20);
}

TEST_F(KafkaSink, AClusterThatForbidsTheProducerFailsTheDestination) {
    cluster_.add_topic("video.events");
    // A producer asks as soon as it has connected, and again and again.
    const std::vector<rd_kafka_resp_err_t> refused(100,
                                                   RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED);
    constexpr int init_producer_id = 22;
    rd_kafka_mock_push_request_errors_array(cluster_.get(), init_producer_id, refused.size(),
                                            refused.data());
    create();
    const Outcome outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::unavailable) << "it would be sent again and again";
    EXPECT_THAT(outcome.error, HasSubstr("uthoriz"));
}

TEST_F(KafkaSink, AnUnreachableClusterFailsTheDestination) {
    cluster_.add_topic("video.events");
    create({{"connect_timeout", "1s"}});
    for (int broker = 1; broker <= 3; broker++)
        rd_kafka_mock_broker_set_down(cluster_.get(), broker);
    const Outcome outcome = send(batch());
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::destination);
    EXPECT_FALSE(outcome.error.empty());
    for (int broker = 1; broker <= 3; broker++)
        rd_kafka_mock_broker_set_up(cluster_.get(), broker);
    EXPECT_EQ(send(batch()).fate, Fate::confirmed);
    EXPECT_EQ(cluster_.records("video.events").size(), 1u);
}

TEST_F(KafkaSink, NoAnswerInTimeIsAFailure) {
    cluster_.add_topic("video.events");
    create({{"request_timeout", "500ms"}});
    for (int broker = 1; broker <= 3; broker++)
        rd_kafka_mock_broker_set_rtt(cluster_.get(), broker, 5'000);
    const Outcome outcome = send(batch());
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_EQ(outcome.error, "no answer within 500ms (request_timeout)");
    for (int broker = 1; broker <= 3; broker++)
        rd_kafka_mock_broker_set_rtt(cluster_.get(), broker, 0);
    create();
    EXPECT_EQ(send(batch()).fate, Fate::confirmed);
}

// The cluster says that its brokers are at 127.0.0.1, whatever the first one was called.
TEST_F(KafkaSink, ConnectsOnlyWhereItMay) {
    cluster_.add_topic("video.events");
    const std::string brokers = cluster_.brokers();
    const std::string port = brokers.substr(brokers.rfind(':'));
    make({{"url", "kafka://localhost" + port}, {"request_timeout", "3s"}}, {}, "localhost");
    Outcome outcome = send(batch());
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("of host \"127.0.0.1\" is not allowed"));
    create({}, {}, "example.com");
    outcome = send(batch());
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("is not allowed"));
    create({}, {}, "");
    EXPECT_THAT(send(batch()).error, HasSubstr("is not allowed")) << "loopback must be named";
    EXPECT_TRUE(cluster_.records("video.events").empty());
}

TEST_F(KafkaSink, CredentialsMustBeComplete) {
    create({{"sasl_mechanism", "PLAIN"}});
    EXPECT_THAT(send(batch()).error, HasSubstr("user and password are required"));
    create({}, {{"user", "alice"}, {"password", "s3cret"}});
    EXPECT_THAT(send(batch()).error, HasSubstr("sasl_mechanism is not set"));
    create({}, {{"certificate", "-----BEGIN CERTIFICATE-----"}});
    EXPECT_THAT(send(batch()).error, HasSubstr("need each other"));
}

TEST_F(KafkaSink, ManyBatchesAreInFlight) {
    cluster_.add_topic("video.events");
    create();
    for (std::size_t i = 0; i < 32; i++)
        sink_->submit(numbered(50, 50, 1 + 50 * i));
    for (const Outcome& outcome : outcomes(32))
        EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_EQ(cluster_.records("video.events").size(), 1600u);
}

TEST_F(KafkaSink, ASinkThatGoesWaitsForNothing) {
    cluster_.add_topic("video.events");
    create();
    for (int broker = 1; broker <= 3; broker++)
        rd_kafka_mock_broker_set_rtt(cluster_.get(), broker, 60'000);
    sink_->submit(batch());
    std::vector<Outcome> none;
    sink_->step(clock_.now(), none);
    const Micros began = clock_.now();
    sink_.reset();
    EXPECT_LT(clock_.now() - began, seconds(30));
}

TEST_F(KafkaSink, ATombstoneFollowsAnEventThatDeletes) {
    cluster_.add_topic("video.events", 4);
    create({{"tombstone_after", "*Deleted"}, {"receipts", "on"}, {"timestamp", "occurred"}});
    Batch& sent = numbered(3, 1);
    sent.events[1]->event_type = "VideoDeleted";
    Outcome outcome = send(sent);
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_EQ(outcome.message_ids.size(), 3u);
    const std::vector<MockRecord> records = cluster_.records("video.events");
    ASSERT_EQ(records.size(), 4u);
    EXPECT_EQ(records[1].value, "2");
    EXPECT_EQ(records[2].value, std::nullopt);
    EXPECT_EQ(records[2].key, records[1].key);
    EXPECT_EQ(records[2].partition, records[1].partition);
    EXPECT_EQ(records[2].timestamp, records[1].timestamp);
    EXPECT_EQ(records[2].headers.front(), records[1].headers.front()) << "the same event_id";
    EXPECT_EQ(records[3].value, "3");
}

TEST_F(KafkaSink, NoTombstoneFollowsATombstoneOrAnEventWithoutKey) {
    cluster_.add_topic("video.events");
    create({{"tombstone_after", "*"}});
    Batch& sent = batch(2);
    sent.events[0]->has_payload = false;
    sent.events[0]->payload = {};
    sent.events[1]->ordering_key = {};
    EXPECT_EQ(send(sent).fate, Fate::confirmed);
    EXPECT_EQ(cluster_.records("video.events").size(), 2u);
}

TEST_F(KafkaSink, AnEventWhoseTombstoneFailsIsNotConfirmed) {
    cluster_.add_topic("video.events", 1);
    create({{"tombstone_after", "*"}});
    EXPECT_EQ(send(batch()).fate, Fate::confirmed);
    const std::size_t known = cluster_.records("video.events", 1).size();
    // The topic is on trial, and so each record has a request of its own.
    cluster_.fail({RD_KAFKA_RESP_ERR_POLICY_VIOLATION});
    Batch& sent = batch();
    Outcome outcome = send(sent);
    EXPECT_NE(outcome.fate, Fate::confirmed);
    cluster_.fail({RD_KAFKA_RESP_ERR_NO_ERROR, RD_KAFKA_RESP_ERR_POLICY_VIOLATION});
    outcome = send(sent);
    ASSERT_EQ(outcome.of_events.size(), 1u);
    EXPECT_EQ(outcome.of_events.front().fate, Fate::refused);
    EXPECT_GT(cluster_.records("video.events", 1).size(), known) << "the event itself has arrived";
    EXPECT_EQ(send(sent).fate, Fate::confirmed);
    EXPECT_EQ(cluster_.records("video.events", 1).back().value, std::nullopt);
}

TEST_F(KafkaSink, TheFrameOfASchemaIsBeforeThePayload) {
    cluster_.add_topic("video.events", 1);
    create({{"schema_id_header", "schema"}, {"tombstone_after", "*Deleted"}});
    Batch& sent = batch(3);
    samples_[0].add("schema", "7", Header::Kind::literal);
    samples_[0].event.event_type = "VideoDeleted";
    samples_[2].event.has_payload = false;
    samples_[1].event.ordering_key = "other";
    const Outcome outcome = send(sent);
    ASSERT_EQ(outcome.of_events.size(), 3u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::confirmed);
    EXPECT_EQ(outcome.of_events[1].fate, Fate::refused);
    EXPECT_TRUE(outcome.of_events[1].permanent);
    EXPECT_THAT(outcome.of_events[1].error, HasSubstr("header \"schema\""));
    EXPECT_EQ(outcome.of_events[2].fate, Fate::confirmed);
    const std::vector<MockRecord> records = cluster_.records("video.events", 1);
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records[0].value, std::string("\0\0\0\0\7", 5) + R"({"title": "Cats"})");
    EXPECT_EQ(records[1].value, std::nullopt);
    EXPECT_EQ(records[2].value, std::nullopt);
}

TEST_F(KafkaSink, ARegistryThatIsAwayHoldsBackTheTopic) {
    cluster_.add_topic("video.events");
    create({{"schema_registry", "http://127.0.0.1:1"}});
    Outcome outcome = send(batch());
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.error, HasSubstr("schema registry"));
    ScriptedPeer registry;
    const std::string not_found = R"({"error_code":40401})";
    for (const std::string& body : {not_found, std::string(R"({"id":7})")})
        registry.then({.bytes = std::string("HTTP/1.1 ") + (body == not_found ? "404" : "200") +
                                " x\r\nContent-Length: " + std::to_string(body.size()) +
                                "\r\n\r\n" + body});
    create({{"schema_registry", registry.url()}});
    outcome = send(batch());
    ASSERT_EQ(outcome.of_events.size(), 1u);
    EXPECT_EQ(outcome.of_events.front().fate, Fate::refused);
    EXPECT_FALSE(outcome.of_events.front().permanent) << "it may be registered later";
    EXPECT_EQ(send(batch()).fate, Fate::confirmed);
    EXPECT_EQ(cluster_.records("video.events").front().value->substr(0, 5),
              std::string("\0\0\0\0\7", 5));
}

TEST_F(KafkaSink, TheCheckLooksAtTheClusterAndAtTopics) {
    cluster_.add_topic("video.events");
    rd_kafka_mock_topic_set_error(cluster_.get(), "other", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    create();
    const std::vector<Finding> findings = check({"video.events", "other", "a b"});
    ASSERT_EQ(findings.size(), 5u);
    EXPECT_EQ(findings[0].subject, "connection");
    EXPECT_THAT(findings[0].detail, HasSubstr("3 brokers"));
    EXPECT_EQ(findings[1].subject, "brokers");
    EXPECT_TRUE(findings[1].ok) << findings[1].detail;
    EXPECT_TRUE(findings[2].ok);
    EXPECT_EQ(findings[2].detail, "it exists, with 4 partitions");
    EXPECT_FALSE(findings[3].ok);
    EXPECT_EQ(findings[3].detail, "it does not exist (create it)");
    EXPECT_FALSE(findings[4].ok);
}

TEST_F(KafkaSink, TheCheckWaitsForASlowCluster) {
    cluster_.add_topic("video.events");
    for (int broker = 1; broker <= 3; broker++)
        rd_kafka_mock_broker_set_rtt(cluster_.get(), broker, 700);
    create({{"connect_timeout", "60s"}});
    const std::vector<Finding> findings = check({"video.events"});
    ASSERT_EQ(findings.size(), 3u) << findings[0].detail;
    for (const Finding& finding : findings)
        EXPECT_TRUE(finding.ok) << finding.subject << ": " << finding.detail;
}

// The cluster says that its brokers are at 127.0.0.1, which may not be connected to.
TEST_F(KafkaSink, TheCheckConnectsWhereBrokersSayThatTheyAre) {
    cluster_.add_topic("video.events");
    const std::string brokers = cluster_.brokers();
    const std::string port = brokers.substr(brokers.rfind(':'));
    make({{"url", "kafka://localhost" + port}, {"connect_timeout", "3s"}}, {}, "localhost");
    const std::vector<Finding> findings = check({"video.events"});
    ASSERT_EQ(findings.size(), 4u);
    EXPECT_EQ(findings[0].subject, "connection");
    EXPECT_TRUE(findings[0].ok);
    for (std::size_t i = 1; i < 4; i++) {
        EXPECT_EQ(findings[i].subject, "broker " + std::to_string(i));
        EXPECT_FALSE(findings[i].ok);
        EXPECT_THAT(findings[i].detail, HasSubstr("it advertises 127.0.0.1:"));
        EXPECT_THAT(findings[i].detail, HasSubstr("is not allowed"));
    }
}

}  // namespace
}  // namespace outbox
