#include "sinks/screened_sink.hpp"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "core/clock.hpp"
#include "core/pipeline/pipeline.hpp"

namespace outbox {
namespace {

// Keeps batches until the test ends them.
class KeepingSink final : public Sink {
  public:
    explicit KeepingSink(bool ordered) : ordered_(ordered) {}
    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = 100, .max_batches = 8, .ordered = ordered_};
    }
    int descriptor() const noexcept override { return -1; }
    Micros deadline() const noexcept override { return never; }
    void submit(Batch& batch) override { batches.push_back(&batch); }
    void step(Micros, std::vector<Outcome>& outcomes) override {
        for (Batch* batch : batches)
            if (ends)
                outcomes.push_back({.batch = batch, .fate = fate});
        if (ends)
            batches.clear();
    }

    std::vector<Batch*> batches;
    bool ends = false;
    Fate fate = Fate::confirmed;

  private:
    const bool ordered_;
};

class ScreenedSinkTest : public testing::Test {
  protected:
    void wrap(bool ordered) {
        auto inner = std::make_unique<KeepingSink>(ordered);
        inner_ = inner.get();
        sink_ = screened(std::move(inner));
        faulty_.fault = "filter: division by zero";
    }
    std::vector<Outcome> step() {
        std::vector<Outcome> outcomes;
        sink_->step(0, outcomes);
        return outcomes;
    }

    Event good_, other_, faulty_, behind_;
    KeepingSink* inner_ = nullptr;
    std::unique_ptr<Sink> sink_;
};

TEST_F(ScreenedSinkTest, PassesOnWhatCanBeSent) {
    wrap(false);
    Batch batch{.events = {&good_, &other_}};
    sink_->submit(batch);
    EXPECT_EQ(sink_->deadline(), never);
    inner_->ends = true;
    const auto outcomes = step();
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_EQ(outcomes[0].fate, Fate::confirmed);
    EXPECT_TRUE(outcomes[0].of_events.empty());
}

TEST_F(ScreenedSinkTest, RefusesAFaultyEventAndSendsTheOthers) {
    wrap(false);
    faulty_.ordering_key = behind_.ordering_key = "k";
    Batch batch{.events = {&good_, &faulty_, &behind_, &other_}};
    sink_->submit(batch);
    ASSERT_EQ(inner_->batches.size(), 1u);
    EXPECT_EQ(inner_->batches[0]->events, (std::vector<Event*>{&good_, &other_}));
    inner_->ends = true;
    const auto outcomes = step();
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_EQ(outcomes[0].batch, &batch);
    ASSERT_EQ(outcomes[0].of_events.size(), 4u);
    EXPECT_EQ(outcomes[0].of_events[0].fate, Fate::confirmed);
    EXPECT_EQ(outcomes[0].of_events[1].fate, Fate::refused);
    EXPECT_EQ(outcomes[0].of_events[1].error, "filter: division by zero");
    EXPECT_TRUE(outcomes[0].of_events[1].permanent);
    EXPECT_EQ(outcomes[0].of_events[2].fate, Fate::undone);
    EXPECT_EQ(outcomes[0].of_events[3].fate, Fate::confirmed);
}

TEST_F(ScreenedSinkTest, WhenThePartFailsSoDoesTheBatch) {
    wrap(false);
    Batch batch{.events = {&good_, &faulty_, &other_}};
    sink_->submit(batch);
    inner_->ends = true;
    inner_->fate = Fate::failed;
    const auto outcomes = step();
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_EQ(outcomes[0].batch, &batch);
    EXPECT_EQ(outcomes[0].fate, Fate::failed);
    EXPECT_TRUE(outcomes[0].of_events.empty());
}

TEST_F(ScreenedSinkTest, ABatchOfFaultyEventsIsNotPassedOn) {
    wrap(false);
    Batch batch{.events = {&faulty_}};
    sink_->submit(batch);
    EXPECT_TRUE(inner_->batches.empty());
    EXPECT_EQ(sink_->deadline(), 0);
    const auto outcomes = step();
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_EQ(outcomes[0].of_events.at(0).fate, Fate::refused);
    EXPECT_EQ(sink_->deadline(), never);
}

TEST_F(ScreenedSinkTest, InAnOrderedSinkNothingOvertakesAFaultyEvent) {
    wrap(true);
    Batch before{.events = {&good_}}, faulty{.events = {&faulty_}}, behind{.events = {&other_}};
    sink_->submit(before);
    sink_->submit(faulty);
    sink_->submit(behind);
    EXPECT_EQ(inner_->batches.size(), 1u);
    EXPECT_TRUE(step().empty());
    inner_->ends = true;
    const auto outcomes = step();
    ASSERT_EQ(outcomes.size(), 3u);
    EXPECT_EQ(outcomes[0].fate, Fate::confirmed);
    EXPECT_EQ(outcomes[1].batch, &faulty);
    EXPECT_EQ(outcomes[1].of_events.at(0).fate, Fate::refused);
    EXPECT_EQ(outcomes[2].batch, &behind);
    EXPECT_EQ(outcomes[2].fate, Fate::undone);
}

TEST_F(ScreenedSinkTest, WhenAnOrderedSinkFailsAllBehindItIsUndone) {
    wrap(true);
    Batch before{.events = {&good_}}, faulty{.events = {&faulty_}};
    sink_->submit(before);
    sink_->submit(faulty);
    inner_->ends = true;
    inner_->fate = Fate::failed;
    const auto outcomes = step();
    ASSERT_EQ(outcomes.size(), 2u);
    EXPECT_EQ(outcomes[0].fate, Fate::failed);
    EXPECT_EQ(outcomes[1].fate, Fate::undone);
    EXPECT_TRUE(outcomes[1].of_events.empty());
}

// Through the pipeline, with the table in the test's hands: what is parked comes back when its key is
// free. Many faulty events in a row take no lane down, and nothing is sent twice.
class ScreenedPipelineTest : public testing::TestWithParam<std::tuple<bool, int>> {
  protected:
    static constexpr int count = 300;
    static bool is_faulty(std::int64_t position) { return position % 10 == 0 || position > 150; }

    void add(EventBlock& block, int position) {
        Event* event = block.append(64);
        ASSERT_NE(event, nullptr);
        event->position = position;
        const int keys = std::get<1>(GetParam());
        const std::string key = keys == 0 ? "" : "k" + std::to_string(position % keys);
        event->ordering_key = block.copy(key.data(), key.size());
        if (is_faulty(position))
            event->fault = "payload: invalid input syntax";
    }
};
INSTANTIATE_TEST_SUITE_P(OrderAndKeys, ScreenedPipelineTest,
                         testing::Combine(testing::Bool(), testing::Values(0, 1, 7)));

TEST_P(ScreenedPipelineTest, EveryFaultyEventBecomesADeadLetterAndAllOthersArrive) {
    auto inner = std::make_unique<KeepingSink>(std::get<0>(GetParam()));
    inner->ends = true;
    SystemClock clock;
    DeliveryStats stats;
    Pipeline pipeline(screened(std::move(inner)), {.receipts = true}, clock, stats, 1);
    pipeline.open_window();
    EventBlock* block = pipeline.take_block();
    for (int position = 1; position <= count; position++)
        add(*block, position);
    pipeline.admit(block);
    pipeline.close_window(count);
    std::set<std::int64_t> refused, waiting;
    for (int round = 0; round < 10'000 && (pipeline.unsettled() > 0 || !waiting.empty()); round++) {
        pipeline.step();
        std::set<std::string> keys;
        pipeline.gather_records();
        for (const Record& record : pipeline.records()) {
            const std::int64_t position = record.event->position;
            keys.emplace(record.event->ordering_key);
            if (record.kind == Record::Kind::refused) {
                EXPECT_TRUE(record.permanent);
                EXPECT_TRUE(refused.insert(position).second);
                waiting.erase(position);
            } else if (record.kind == Record::Kind::confirmed) {
                waiting.erase(position);
            } else {
                waiting.insert(position);
            }
        }
        pipeline.recorded();
        if (pipeline.unsettled() > 0 || waiting.empty())
            continue;
        for (const std::string& key : keys)
            pipeline.free_key(key);
        block = pipeline.take_block();
        for (const std::int64_t position : waiting)
            add(*block, static_cast<int>(position));
        pipeline.admit_retries(block);
    }
    EXPECT_EQ(pipeline.unsettled(), 0u);
    EXPECT_EQ(refused.size(), 165u);
    std::set<std::int64_t> arrived;
    for (const Receipt& receipt : pipeline.receipts())
        EXPECT_TRUE(arrived.insert(receipt.position).second);
    EXPECT_EQ(arrived.size(), 135u);
    for (const std::int64_t position : arrived)
        EXPECT_FALSE(is_faulty(position));
    EXPECT_EQ(pipeline.failures(), 0u);
    EXPECT_EQ(pipeline.lanes_down(), 0u);
}

}  // namespace
}  // namespace outbox
