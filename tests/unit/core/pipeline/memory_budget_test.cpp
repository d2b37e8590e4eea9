// Pipelines that share memory.
#include "core/pipeline/memory_budget.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "core/pipeline/pipeline.hpp"
#include "scripted_sink.hpp"
#include "unit/event_spec.hpp"
#include "unit/fake_clock.hpp"

namespace outbox {
namespace {

class MemoryBudgetTest : public testing::Test {
  protected:
    struct Destination {
        ScriptedSink* sink;
        std::unique_ptr<Pipeline> pipeline;
        std::int64_t position = 0;
    };

    Destination destination(bool lanes = false) {
        auto sink = std::make_unique<ScriptedSink>(Capabilities{.max_batches = 8, .lanes = lanes});
        Destination made{sink.get(), nullptr};
        made.pipeline = std::make_unique<Pipeline>(
            std::move(sink), Pipeline::Limits{.max_bytes = 1024 * MB, .budget = &budget}, clock,
            stats, 42);
        return made;
    }
    // Reads one block with one event.
    void read(Destination& destination, const char* topic = "t") {
        EventBlock* block = destination.pipeline->take_block();
        ASSERT_TRUE(append(*block, {.position = ++destination.position, .topic = topic}));
        destination.pipeline->open_window();
        destination.pipeline->admit(block);
        destination.pipeline->close_window();
    }
    std::int64_t read_all_there_is_room_for(Destination& destination) {
        while (destination.pipeline->has_room() && destination.position < 10'000)
            read(destination);
        return destination.position;
    }

    static constexpr std::size_t MB = 1024 * 1024;
    const std::int64_t blocks = static_cast<std::int64_t>(64 * MB / usual_block_bytes());
    MemoryBudget budget{64 * MB};
    FakeClock clock;
    DeliveryStats stats;
};

TEST_F(MemoryBudgetTest, OneAloneMayHaveHalf) {
    Destination one = destination();
    EXPECT_NEAR(static_cast<double>(read_all_there_is_room_for(one)),
                static_cast<double>(blocks) / 2, 2);
}

TEST_F(MemoryBudgetTest, ManyThatTakeAllTheyCanLeaveSomethingToTheNext) {
    std::vector<Destination> down;
    for (int i = 0; i < 9; i++)
        down.push_back(destination());
    for (bool any = true; any;) {
        any = false;
        for (Destination& one : down)
            if (one.pipeline->has_room()) {
                read(one);
                any = true;
            }
    }
    for (const Destination& one : down)
        EXPECT_NEAR(static_cast<double>(one.position), static_cast<double>(blocks) / 10, 2);
    Destination next = destination();
    EXPECT_NEAR(static_cast<double>(read_all_there_is_room_for(next)),
                static_cast<double>(blocks) / 20, 2);
}

TEST_F(MemoryBudgetTest, APipelineReadsEvenIfNothingIsLeft) {
    MemoryCharge others(&budget);
    others.set(100 * MB);
    Destination one = destination();
    EXPECT_EQ(read_all_there_is_room_for(one), 2) << "one is read while another is sent";
    one.pipeline->step();
    one.sink->confirm(1);
    one.pipeline->step();
    EXPECT_TRUE(one.pipeline->has_room());
}

TEST_F(MemoryBudgetTest, WhatIsSettledIsGivenBack) {
    Destination one = destination();
    read_all_there_is_room_for(one);
    while (one.pipeline->unsettled() > 0) {
        one.pipeline->step();
        one.sink->confirm_everything();
        one.pipeline->step();
    }
    one.pipeline->free_spare_blocks();
    EXPECT_EQ(budget.taken(), 0u);
}

TEST_F(MemoryBudgetTest, NoBlockIsKeptAfterTheLastWindow) {
    Destination one = destination();
    read(one);
    one.pipeline->free_spare_blocks();  // at rest, while the last events are in flight
    one.pipeline->step();
    one.sink->confirm_everything();
    one.pipeline->step();
    EXPECT_EQ(budget.taken(), 0u);
}

TEST_F(MemoryBudgetTest, AllIsGivenBackAtTheEnd) {
    {
        Destination one = destination();
        read_all_there_is_room_for(one);
        one.pipeline->step();
    }
    EXPECT_EQ(budget.taken(), 0u);
}

// The events of a lane that is down must not take the little that there is.
TEST_F(MemoryBudgetTest, ALaneThatIsDownLeavesWhenMemoryIsShort) {
    MemoryCharge others(&budget);
    others.set(100 * MB);
    Destination one = destination(true);
    EventBlock* block = one.pipeline->take_block();
    for (int i = 0; i < 200; i++)
        ASSERT_TRUE(append(*block, {.position = ++one.position, .topic = "down"}));
    one.pipeline->open_window();
    one.pipeline->admit(block);
    one.pipeline->close_window();
    read(one, "down");
    EXPECT_FALSE(one.pipeline->has_room());
    for (int i = 0; i < 100 && one.pipeline->records().empty(); i++) {
        one.pipeline->step();
        for (const Positions& batch : one.sink->in_flight())
            one.sink->fail_in(batch.front(), Fate::unavailable, Scope::lane);
        clock.advance(milliseconds(100));
    }
    EXPECT_FALSE(one.pipeline->records().empty());
}

}  // namespace
}  // namespace outbox
