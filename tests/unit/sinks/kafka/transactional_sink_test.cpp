// The kafka sink with exactly_once against librdkafka's mock cluster; the test plays the relay. The mock
// cluster has no reader of committed records: what becomes of transactions is tested with real brokers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>

#include "core/transactions.hpp"
#include "unit/drive.hpp"
#include "unit/sample_event.hpp"
#include "unit/sinks/kafka/mock_cluster.hpp"

namespace outbox {
namespace {

using testing::HasSubstr;

class TransactionalKafkaSink : public DrivenSink {
  protected:
    void create(std::vector<Option> options = {}) {
        options.push_back({"url", "kafka://" + cluster_.brokers()});
        options.push_back({"exactly_once", "on"});
        make(options, {});
        sink_->submit(batch());  // nothing is sent before it is known what was
        take_until([&] { return transactions().is_known(); });
    }
    Transactions& transactions() { return *sink_->transactions(); }

    void take_until(const std::function<bool()>& done) {
        const Micros give_up = clock_.now() + patience;
        while (!done() && clock_.now() < give_up)
            step_once(outcomes_);
        EXPECT_TRUE(done()) << "it took too long";
    }
    void note_until(std::size_t outcomes) {
        take_until([&] {
            while (transactions().to_note() != nullptr)
                transactions().noted();
            return outcomes_.size() >= outcomes;
        });
    }

    Batch& batch(std::string_view topic = "video.events", std::size_t count = 1) {
        Batch& batch = batches_.emplace_back();
        for (std::size_t i = 0; i < count; i++) {
            Event& event = samples_.emplace_back().event;
            event.topic = topic;
            batch.events.push_back(&event);
        }
        return batch;
    }
    const Outcome& outcome_of(const Batch& batch) const {
        for (const Outcome& outcome : outcomes_)
            if (outcome.batch == &batch)
                return outcome;
        ADD_FAILURE() << "no outcome";
        static const Outcome none{.fate = Fate::failed};
        return none;
    }

    MockCluster cluster_{1};
    std::deque<SampleEvent> samples_;
    std::deque<Batch> batches_;
    std::vector<Outcome> outcomes_;
};

TEST_F(TransactionalKafkaSink, CommitsWhatIsNoted) {
    cluster_.add_topic("video.events");
    create();
    EXPECT_EQ(transactions().committed()[0], std::nullopt);
    take_until([&] { return transactions().to_note() != nullptr; });
    const Transaction& transaction = *transactions().to_note();
    const std::size_t line = transaction.line;
    EXPECT_EQ(transaction.number, 1);
    EXPECT_EQ(transaction.batches, std::vector<const Batch*>{&batches_.front()});
    note_until(1);
    EXPECT_EQ(outcomes_.front().fate, Fate::confirmed) << outcomes_.front().error;
    EXPECT_EQ(transactions().committed()[line], 1);
}

// Asked with a producer, librdkafka ends the process (its issue 5040). A group that is new to the
// cluster, or whose broker has just ended, is answered like this.
TEST_F(TransactionalKafkaSink, ABrokerThatDoesNotKeepTheNumbersIsNotTheEnd) {
    constexpr std::int16_t offset_fetch = 9;
    cluster_.add_topic("video.events");
    rd_kafka_mock_push_request_errors(cluster_.get(), offset_fetch, 2,
                                      RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
                                      RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE);
    create();
    note_until(1);
    EXPECT_EQ(outcomes_.front().fate, Fate::confirmed) << outcomes_.front().error;
}

TEST_F(TransactionalKafkaSink, WaitsForTheNote) {
    cluster_.add_topic("video.events");
    create();
    take_until([&] { return cluster_.records("video.events").size() == 1; });
    EXPECT_TRUE(outcomes_.empty());
    EXPECT_EQ(transactions().committed()[transactions().to_note()->line], std::nullopt);
    note_until(1);
}

TEST_F(TransactionalKafkaSink, AMissingTopicFailsAndTheOthersAreSentAgain) {
    cluster_.add_topic("video.events");
    create();
    note_until(1);
    outcomes_.clear();
    rd_kafka_mock_topic_set_error(cluster_.get(), "other.events",
                                  RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    Batch& good = batch();
    Batch& bad = batch("other.events");
    sink_->submit(bad);
    sink_->submit(good);
    note_until(2);
    EXPECT_EQ(outcome_of(bad).fate, Fate::unavailable);
    EXPECT_EQ(outcome_of(bad).scope, Scope::lane);
    EXPECT_EQ(outcome_of(good).fate, Fate::undone);
    outcomes_.clear();
    sink_->submit(bad);
    sink_->submit(good);
    note_until(2);
    EXPECT_EQ(outcome_of(bad).fate, Fate::unavailable);
    EXPECT_EQ(outcome_of(good).fate, Fate::confirmed) << "the other topic is on trial";
}

TEST_F(TransactionalKafkaSink, ARefusedEventIsFoundAndTheOthersAreSentAgain) {
    cluster_.add_topic("video.events");
    create();
    note_until(1);
    outcomes_.clear();
    Batch& both = batch("video.events", 2);
    std::string large(2'000'000, 'x');
    both.events[1]->payload = large;
    both.events[1]->ordering_key = "another";
    sink_->submit(both);
    note_until(1);
    ASSERT_EQ(outcomes_.front().of_events.size(), 2u);
    EXPECT_EQ(outcomes_.front().of_events[0].fate, Fate::undone);
    EXPECT_EQ(outcomes_.front().of_events[1].fate, Fate::refused);
    EXPECT_TRUE(outcomes_.front().of_events[1].permanent);
    outcomes_.clear();
    both.events.pop_back();
    sink_->submit(both);
    note_until(1);
    EXPECT_EQ(outcomes_.front().fate, Fate::confirmed);
}

TEST_F(TransactionalKafkaSink, AnEventAndItsTombstoneAreOfOneTransaction) {
    cluster_.add_topic("video.events");
    create({{"tombstone_after", "*"}});
    note_until(1);
    EXPECT_EQ(outcomes_.front().fate, Fate::confirmed) << outcomes_.front().error;
    const std::vector<MockRecord> records = cluster_.records("video.events");
    ASSERT_EQ(records.size(), 2u);
    EXPECT_NE(records[0].value, std::nullopt);
    EXPECT_EQ(records[1].value, std::nullopt);
}

TEST_F(TransactionalKafkaSink, AnEventWithoutSchemaIsRefused) {
    cluster_.add_topic("video.events");
    create({{"schema_id_header", "schema"}});
    note_until(1);
    ASSERT_EQ(outcomes_.front().of_events.size(), 1u);
    EXPECT_EQ(outcomes_.front().of_events.front().fate, Fate::refused);
    EXPECT_THAT(outcomes_.front().of_events.front().error, HasSubstr("header \"schema\""));
    outcomes_.clear();
    Batch& good = batch();
    samples_.back().add("schema", "7");
    sink_->submit(good);
    note_until(1);
    EXPECT_EQ(outcomes_.front().fate, Fate::confirmed) << outcomes_.front().error;
    EXPECT_EQ(cluster_.records("video.events").front().value->substr(0, 5),
              std::string("\0\0\0\0\7", 5));
}

TEST_F(TransactionalKafkaSink, ARegistryThatIsAwayHoldsBackTheTopic) {
    cluster_.add_topic("video.events");
    create({{"schema_registry", "http://127.0.0.1:1"}});
    note_until(1);
    EXPECT_EQ(outcomes_.front().fate, Fate::unavailable);
    EXPECT_EQ(outcomes_.front().scope, Scope::lane);
}

TEST_F(TransactionalKafkaSink, SaysWhyNothingIsKnown) {
    make({{"url", "kafka://127.0.0.1:1"}, {"exactly_once", "on"}}, {});
    take_until([&] { return !transactions().trouble().empty(); });
    EXPECT_FALSE(transactions().is_known());
    EXPECT_THAT(transactions().trouble(), HasSubstr("127.0.0.1:1"));
    EXPECT_GT(sink_->deadline(), 0) << "it is tried again, after a pause";
}

}  // namespace
}  // namespace outbox
