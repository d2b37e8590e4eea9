// The pipeline, one behaviour at a time, with a scripted sink and a clock that stands still.
// pipeline_property_test.cpp covers unforeseen cases.
#include "core/pipeline/pipeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "scripted_sink.hpp"
#include "sinks/null/null_sink.hpp"
#include "unit/event_spec.hpp"
#include "unit/fake_clock.hpp"

namespace outbox {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

using Batches = std::vector<Positions>;

class PipelineTest : public testing::Test {
  protected:
    void start(const Capabilities& capabilities, const Pipeline::Limits& limits = {}) {
        auto scripted = std::make_unique<ScriptedSink>(capabilities);
        sink = scripted.get();
        pipeline = std::make_unique<Pipeline>(std::move(scripted), limits, clock, stats, 42);
    }

    // Admits one block of events to the open window.
    void admit(const std::vector<EventSpec>& events) {
        EventBlock* block = pipeline->take_block();
        for (const EventSpec& event : events)
            ASSERT_TRUE(append(*block, event)) << "event " << event.position;
        pipeline->admit(block);
    }
    // Admits a whole window of several blocks.
    void window(const std::vector<std::vector<EventSpec>>& blocks) {
        pipeline->open_window();
        for (const std::vector<EventSpec>& events : blocks)
            admit(events);
        pipeline->close_window();
    }

    void step() { pipeline->step(); }
    void confirm(std::int64_t position) {
        sink->confirm(position);
        step();
    }
    void fail(std::int64_t position, const char* error = "refused", Micros retry_after = 0) {
        sink->fail(position, error, retry_after);
        step();
    }
    // Moves the clock to the deadline of the pipeline.
    void wait() {
        ASSERT_NE(pipeline->deadline(), never) << "nothing would ever wake the relay";
        clock.advance_to(pipeline->deadline());
        step();
    }
    void confirm_everything() {
        for (step(); pipeline->unsettled() > 0; step()) {
            ASSERT_THAT(sink->in_flight(), testing::Not(testing::IsEmpty()))
                << pipeline->unsettled() << " events are not settled, and none is in flight";
            sink->confirm_everything();
        }
    }
    Micros delay() const { return pipeline->deadline() - clock.now(); }

    FakeClock clock;
    DeliveryStats stats;
    ScriptedSink* sink = nullptr;
    std::unique_ptr<Pipeline> pipeline;
};

// One event per request, several requests at a time: HTTP.
constexpr Capabilities single_events{.max_batches = 8};
// Several events per request, one request at a time.
constexpr Capabilities one_batch{.max_batch_events = 10, .max_batches = 1};
// Pipelined transactions: PostgreSQL.
constexpr Capabilities ordered{.max_batches = 3, .ordered = true};

// ---------------------------------------------------------------------------------------------
// Order
// ---------------------------------------------------------------------------------------------

class PipelineOrder : public PipelineTest {};

TEST_F(PipelineOrder, EventsOfOneKeyGoOneAfterTheOther) {
    start(single_events);
    window({{{1, "a"}, {2, "a"}, {3, "b"}, {4, "a"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1}, {3}}));
    confirm(3);
    EXPECT_EQ(sink->in_flight(), (Batches{{1}}));
    confirm(1);
    EXPECT_EQ(sink->in_flight(), (Batches{{2}}));
    confirm(2);
    EXPECT_EQ(sink->in_flight(), (Batches{{4}}));
}

TEST_F(PipelineOrder, EventsWithoutAKeyDoNotWait) {
    start(single_events);
    window({{{1}, {2}, {3}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1}, {2}, {3}}));
}

TEST_F(PipelineOrder, EventsOfOneKeyMayShareABatch) {
    start(one_batch);
    window({{{1, "a"}, {2, "a"}, {3, "a"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2, 3}}));
}

TEST_F(PipelineOrder, ABatchKeepsTheOrderOfEachOfItsKeys) {
    start(one_batch);
    window({{{1, "a"}, {2, "b"}, {3, "a"}, {4, "b"}, {5}}});
    step();
    ASSERT_EQ(sink->in_flight().size(), 1u);
    const Positions batch = sink->in_flight().front();
    auto place_of = [&](std::int64_t position) {
        return std::find(batch.begin(), batch.end(), position) - batch.begin();
    };
    EXPECT_THAT(batch, testing::UnorderedElementsAre(1, 2, 3, 4, 5));
    EXPECT_LT(place_of(1), place_of(3));
    EXPECT_LT(place_of(2), place_of(4));
}

TEST_F(PipelineOrder, ASinkMayWantOneKeyABatch) {
    start({.max_batch_events = 4, .max_batches = 8, .keys = KeyPolicy::alone});
    window({{{1, "a"}, {2}, {3, "b"}, {4, "a"}, {5}, {6, "a"}}});
    step();
    EXPECT_THAT(sink->in_flight(),
                UnorderedElementsAre(Positions{1, 4, 6}, Positions{2, 5}, Positions{3}));
}

TEST_F(PipelineOrder, ASinkMayWantOneEventOfAKeyABatch) {
    start({.max_batch_events = 4, .max_batches = 8, .keys = KeyPolicy::one_each});
    window({{{1, "a"}, {2}, {3, "b"}, {4, "a"}, {5}, {6, "a"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2, 3, 5}}));
    confirm(1);
    EXPECT_EQ(sink->in_flight(), (Batches{{4}}));
}

TEST_F(PipelineOrder, EventsOfOtherLanesGoInOtherBatches) {
    start({.max_batch_events = 2, .max_batches = 8, .lanes = true});
    window({{{.position = 1, .topic = "x"},
             {.position = 2, .topic = "y"},
             {.position = 3, .topic = "x"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 3}, {2}}));
}

TEST_F(PipelineOrder, AKeyThatMovesToAnotherLaneKeepsItsOrder) {
    start({.max_batch_events = 4, .max_batches = 8, .lanes = true});
    window({{{.position = 1, .key = "k", .topic = "x"},
             {.position = 2, .key = "k", .topic = "y"},
             {.position = 3, .key = "k", .topic = "x"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1}}));
    confirm(1);
    EXPECT_EQ(sink->in_flight(), (Batches{{2}}));
}

TEST_F(PipelineOrder, BatchesThatAreNotFullWaitWhileTheWindowIsRead) {
    start({.max_batch_events = 3, .max_batches = 8, .keys = KeyPolicy::alone, .lanes = true});
    pipeline->open_window();
    admit({{.position = 1, .topic = "x"},
           {.position = 2, .topic = "y"},
           {.position = 3, .key = "k"}});
    step();
    EXPECT_THAT(sink->in_flight(), IsEmpty());
    admit({{.position = 4, .topic = "y"},
           {.position = 5, .topic = "y"},
           {.position = 6, .key = "k"}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{2, 4, 5}}));
    pipeline->close_window();
    step();
    EXPECT_THAT(sink->in_flight(),
                UnorderedElementsAre(Positions{2, 4, 5}, Positions{1}, Positions{3, 6}));
}

TEST_F(PipelineOrder, TheRestOfALaneWaitsWhileRequestsInFlightWillMakeRoom) {
    start({.max_batch_events = 4, .max_batches = 8, .lanes = true}, {.max_events = 5});
    pipeline->open_window();
    admit({{.position = 1}, {.position = 2}, {.position = 3}, {.position = 4}, {.position = 5}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2, 3, 4}}));
    confirm(1);
    EXPECT_THAT(sink->in_flight(), IsEmpty()) << "there is room for more";
    admit({{.position = 6}, {.position = 7}, {.position = 8}, {.position = 9}, {.position = 10}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{5, 6, 7, 8}}));
    pipeline->close_window();
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{5, 6, 7, 8}, {9, 10}}));
}

TEST_F(PipelineOrder, ABatchThatIsFullByItsBytesDoesNotWait) {
    start({.max_batch_events = 10, .max_batch_bytes = 20, .max_batches = 8, .lanes = true});
    pipeline->open_window();
    admit({{.position = 1, .payload = std::string(10, 'x')}});
    step();
    EXPECT_THAT(sink->in_flight(), IsEmpty());
    admit({{.position = 2, .payload = std::string(10, 'x')}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2}}));
}

TEST_F(PipelineOrder, BatchesThatAreNotFullGoWhenThereIsNoRoomForMore) {
    start({.max_batch_events = 30, .max_batches = 8, .lanes = true}, {.max_events = 20});
    pipeline->open_window();
    for (std::int64_t position = 1; pipeline->has_room(); position++) {
        EXPECT_THAT(sink->in_flight(), IsEmpty());
        admit({{.position = position}});
        step();
    }
    EXPECT_EQ(sink->in_flight().size(), 1u);
}

TEST_F(PipelineOrder, LanesTakeTurns) {
    start({.max_batch_events = 1, .max_batches = 1, .lanes = true});
    window({{{.position = 1, .topic = "x"},
             {.position = 2, .topic = "x"},
             {.position = 3, .topic = "x"},
             {.position = 4, .topic = "y"}}});
    step();
    for (std::int64_t position : {1, 4, 2, 3})
        confirm(position);
    EXPECT_TRUE(pipeline->idle());
}

TEST_F(PipelineOrder, EventsOfAKeyThatDidNotFitTheBatchWaitForIt) {
    start({.max_batch_events = 2, .max_batches = 8});
    window({{{1, "a"}, {2, "a"}, {3, "a"}, {4, "b"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2}, {4}}));
    confirm(4);
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2}}));
    confirm(1);
    EXPECT_EQ(sink->in_flight(), (Batches{{3}}));
}

TEST_F(PipelineOrder, EventsOfAKeyThatWereTooLargeForTheBatchWaitForIt) {
    start({.max_batch_events = 10, .max_batch_bytes = 100, .max_batches = 8});
    window({{{1, "a", std::string(60, 'x')}, {2, "a", std::string(60, 'x')}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1}}));
    confirm(1);
    EXPECT_EQ(sink->in_flight(), (Batches{{2}}));
}

TEST_F(PipelineOrder, EventsReadLaterWaitForTheirKeyInFlight) {
    start(one_batch);
    window({{{1, "a"}}});
    step();
    window({{{2, "a"}}});
    window({{{3, "a"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1}}));
    confirm(1);
    EXPECT_EQ(sink->in_flight(), (Batches{{2, 3}}));
}

TEST_F(PipelineOrder, AKeyIsFreeOnceAllOfItIsSettled) {
    start(single_events);
    window({{{1, "a"}}});
    step();
    confirm(1);
    window({{{2, "a"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{2}}));
}

TEST_F(PipelineOrder, AKeyOutlivesTheBlockItCameIn) {
    start(single_events);
    window({{{1, "a"}}, {{2, "a"}}});
    step();
    confirm(1);
    // The block of the first event is reused, with other texts at the same place.
    window({{{3, "b"}, {4, "a"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{2}, {3}}));
    confirm(2);
    EXPECT_EQ(sink->in_flight(), (Batches{{3}, {4}}));
}

TEST_F(PipelineOrder, AnOrderedSinkGetsEventsAsTheyCome) {
    start(ordered);
    window({{{1, "a"}, {2, "a"}, {3, "b"}, {4, "a"}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1}, {2}, {3}})) << "as many as it takes at a time";
    confirm(1);
    EXPECT_EQ(sink->in_flight(), (Batches{{2}, {3}, {4}}));
}

TEST_F(PipelineOrder, NoMoreBatchesAreInFlightThanTheSinkTakes) {
    start({.max_batches = 2});
    window({{{1}, {2}, {3}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1}, {2}}));
    confirm(2);
    EXPECT_EQ(sink->in_flight(), (Batches{{1}, {3}}));
}

TEST_F(PipelineOrder, BatchesStayBelowTheSinksLimits) {
    start({.max_batch_events = 3, .max_batch_bytes = 100, .max_batches = 8});
    const std::string half(50, 'x'), more_than_half(51, 'x');
    window({{{1}, {2}, {3}, {4}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2, 3}, {4}}));
    sink->confirm_everything();
    window({{{5, "", half}, {6, "", half}, {7, "", half}, {8, "", more_than_half}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{5, 6}, {7}, {8}}));
    EXPECT_EQ(sink->batches()[0]->bytes, 100u);
    EXPECT_EQ(sink->batches()[2]->bytes, 51u);
}

TEST_F(PipelineOrder, AnEventAboveTheLimitGoesAlone) {
    start({.max_batch_events = 3, .max_batch_bytes = 100, .max_batches = 8});
    window({{{1}, {2, "", std::string(101, 'x')}, {3}}});
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1}, {2}, {3}}));
}

// ---------------------------------------------------------------------------------------------
// Failure
// ---------------------------------------------------------------------------------------------

class PipelineFailure : public PipelineTest {
  protected:
    static constexpr Micros base = milliseconds(100), cap = seconds(1);
    static constexpr Pipeline::Limits limits{.backoff_base = base, .backoff_cap = cap};
};

TEST_F(PipelineFailure, LaterEventsOfTheKeyDoNotOvertakeTheFailedOne) {
    start({.max_batch_events = 2, .max_batches = 3}, limits);
    window({{{1, "a"}, {2, "a"}, {3, "a"}}});
    step();
    fail(1);
    window({{{4, "a"}}});
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2}}));
    confirm(1);
    EXPECT_EQ(sink->in_flight(), (Batches{{3, 4}}));
}

TEST_F(PipelineFailure, AnOrderedSinkIsSentEverythingAgainInOrder) {
    start(ordered, limits);
    window({{{1, "a"}, {2, "a"}, {3, "b"}, {4, "a"}}});
    step();
    confirm(1);
    fail(3);  // the batches before and after it fail with it
    EXPECT_THAT(sink->in_flight(), IsEmpty());
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{2}}));
    confirm(2);
    EXPECT_EQ(sink->in_flight(), (Batches{{3}, {4}}));
    EXPECT_EQ(sink->submitted(), (Batches{{1}, {2}, {3}, {4}, {2}, {3}, {4}}));
}

TEST_F(PipelineFailure, BacksOffFromTheDestination) {
    start(single_events, limits);
    window({{{1}, {2}}});
    step();
    fail(1);
    confirm(2);
    EXPECT_TRUE(pipeline->backing_off());
    EXPECT_GT(delay(), 0);
    EXPECT_LE(delay(), base);

    window({{{3}}});
    clock.advance(delay() - 1);
    step();
    EXPECT_THAT(sink->in_flight(), IsEmpty());
    clock.advance(1);
    step();
    EXPECT_FALSE(pipeline->backing_off());
    EXPECT_EQ(sink->in_flight(), (Batches{{3}})) << "the probe is not the event that failed";
}

TEST_F(PipelineFailure, ProbesWithOneBatchAndOpensWithItsConfirmation) {
    start(single_events, limits);
    window({{{1}, {2}, {3}}});
    step();
    for (std::int64_t position : {1, 2, 3})
        sink->fail(position);
    step();
    window({{{4}, {5}, {6}}});
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{4}}));
    EXPECT_EQ(pipeline->failures(), 1u);
    confirm(4);
    EXPECT_THAT(sink->in_flight(), testing::IsSupersetOf(Batches{{5}, {6}}));
    EXPECT_EQ(pipeline->failures(), 0u);
}

TEST_F(PipelineFailure, TheProbeDoesNotWaitForEarlierBatches) {
    start(single_events, limits);
    window({{{1}, {2}, {3}}});
    step();
    fail(1);
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{2}, {3}, {1}})) << "2 and 3 may hang for long";
    fail(2);
    EXPECT_EQ(pipeline->failures(), 1u) << "it was sent before the failure that is known";
    confirm(1);
    EXPECT_EQ(pipeline->failures(), 0u);
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{3}, {2}})) << "2 is a suspect";
}

TEST_F(PipelineFailure, AProbeThatFailsBacksOffForLonger) {
    start(single_events, limits);
    window({{{1}}});
    step();
    Micros longest = 0;
    for (unsigned failed = 1; failed <= 40; failed++) {
        fail(1);
        ASSERT_EQ(pipeline->failures(), failed);
        ASSERT_TRUE(pipeline->backing_off());
        ASSERT_GT(delay(), 0);
        ASSERT_LE(delay(), std::min(cap, base << std::min(failed - 1, 10u)))
            << "failure " << failed;
        longest = std::max(longest, delay());
        wait();
        ASSERT_EQ(sink->in_flight(), (Batches{{1}})) << "failure " << failed;
    }
    EXPECT_GT(longest, cap / 2) << "the delays do not grow";
}

TEST_F(PipelineFailure, StartsWithAShortBackOffAgainAfterAConfirmation) {
    start(single_events, limits);
    window({{{1}, {2}}});
    step();
    confirm(2);
    for (int i = 0; i < 20; i++) {
        fail(1);
        wait();
    }
    confirm(1);
    for (std::int64_t position = 3; position < 30; position++) {
        window({{{position}}});
        step();
        fail(position);
        ASSERT_LE(delay(), base);
        wait();
        confirm(position);
    }
}

TEST_F(PipelineFailure, ObeysRetryAfterBeyondItsOwnCap) {
    start(single_events, limits);
    window({{{1}}});
    step();
    fail(1, "429 Too Many Requests", seconds(60));
    EXPECT_EQ(delay(), seconds(60));
    clock.advance(seconds(60) - 1);
    step();
    EXPECT_THAT(sink->in_flight(), IsEmpty());
    clock.advance(1);
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{1}}));
}

TEST_F(PipelineFailure, AShortRetryAfterDoesNotShortenTheBackOff) {
    start(single_events, limits);
    window({{{1}}});
    step();
    Micros longest = 0;
    for (int i = 0; i < 30; i++) {
        fail(1, "503", 1);
        longest = std::max(longest, delay());
        wait();
    }
    EXPECT_GT(longest, cap / 2);
}

TEST_F(PipelineFailure, FailuresFromBeforeTheBackOffDoNotEscalateIt) {
    start(single_events, limits);
    window({{{1}, {2}, {3}}});
    step();
    fail(1);
    const Micros resume = pipeline->deadline();
    fail(2);
    EXPECT_EQ(pipeline->failures(), 1u);
    EXPECT_EQ(pipeline->deadline(), resume);
    clock.advance_to(resume);
    step();
    fail(3);
    EXPECT_EQ(pipeline->failures(), 1u);
    EXPECT_EQ(sink->in_flight().size(), 1u) << "the probe goes; it is not put off once more";
}

TEST_F(PipelineFailure, OneStepWithManyFailuresIsOneFailure) {
    start(ordered, limits);
    window({{{1}, {2}, {3}}});
    step();
    fail(1);
    EXPECT_EQ(pipeline->failures(), 1u);
    EXPECT_LE(delay(), base);
}

TEST_F(PipelineFailure, RetryAfterIsObeyedWhicheverFailureCarriesIt) {
    start(single_events, limits);
    window({{{1}, {2}, {3}}});
    step();
    sink->fail(1, "503", 0);
    sink->fail(2, "429", seconds(60));
    sink->fail(3, "429", seconds(20));
    step();
    EXPECT_EQ(pipeline->failures(), 1u);
    EXPECT_EQ(delay(), seconds(60));
}

TEST_F(PipelineFailure, RetryAfterOfABatchThatWasUnderWayIsObeyedToo) {
    start(single_events, limits);
    window({{{1}, {2}}});
    step();
    fail(1);
    fail(2, "429", seconds(60));
    EXPECT_THAT(sink->in_flight(), IsEmpty()) << "it asked to be left alone";
    EXPECT_TRUE(pipeline->backing_off());
    EXPECT_EQ(delay(), seconds(60));
}

TEST_F(PipelineFailure, ConfirmationsFromBeforeTheBackOffDoNotEndIt) {
    start(single_events, limits);
    window({{{1}, {2}, {3}}});
    step();
    fail(1);
    confirm(2);
    EXPECT_TRUE(pipeline->backing_off());
    EXPECT_EQ(pipeline->failures(), 1u);
    EXPECT_EQ(pipeline->unsettled(), 2u) << "but they settle their events";
    wait();
    confirm(3);
    EXPECT_EQ(pipeline->failures(), 1u);
    EXPECT_EQ(sink->in_flight(), (Batches{{1}}));
    confirm(1);
    EXPECT_EQ(pipeline->failures(), 0u);
}

TEST_F(PipelineFailure, EachFailureIsCountedAndTheLastErrorIsKept) {
    start(single_events, limits);
    window({{{1}, {2}}});
    step();
    fail(1, "connection refused");
    fail(2, "connection reset");
    EXPECT_EQ(stats.failures, 2u);
    EXPECT_EQ(stats.delivered, 0u);
    EXPECT_EQ(pipeline->last_error(), "connection reset");
    EXPECT_EQ(pipeline->unsettled(), 2u);
}

TEST_F(PipelineFailure, WhatASinkHasSentAgainByItselfCountsAsFailed) {
    start(single_events, limits);
    window({{{1}}});
    step();
    sink->sent_again = 2;
    confirm(1);
    SinkReport report;
    for (int reports = 0; reports < 2; reports++)
        pipeline->report(report);
    EXPECT_EQ(stats.failures, 2u);
    EXPECT_EQ(pipeline->last_error(),
              "sent again, because the connection was lost before an answer: it was reset");
    EXPECT_EQ(pipeline->failures(), 0u) << "of a destination that works";
}

// ---------------------------------------------------------------------------------------------
// Deadlines
// ---------------------------------------------------------------------------------------------

class PipelineDeadline : public PipelineTest {};

TEST_F(PipelineDeadline, IsThatOfTheSinkWithoutABackOff) {
    start(single_events);
    EXPECT_EQ(pipeline->deadline(), never);
    sink->set_deadline(clock.now() + seconds(7));
    EXPECT_EQ(pipeline->deadline(), clock.now() + seconds(7));
}

TEST_F(PipelineDeadline, IsTheSinksOrTheEndOfTheBackOffWhicheverIsEarlier) {
    start(single_events, {.backoff_base = seconds(10), .backoff_cap = seconds(10)});
    window({{{1}, {2}}});
    step();
    fail(1, "503", seconds(20));
    EXPECT_EQ(delay(), seconds(20));
    sink->set_deadline(clock.now() + seconds(7));
    EXPECT_EQ(delay(), seconds(7));
    sink->set_deadline(clock.now() + seconds(70));
    EXPECT_EQ(delay(), seconds(20));
}

TEST_F(PipelineDeadline, IsNowWhileEventsCouldGo) {
    start({.max_batches = 1});
    sink->confirm_at_once();
    std::vector<EventSpec> events;
    for (std::int64_t position = 1; position <= 100; position++)
        events.push_back({position});
    window({events});
    step();
    ASSERT_GT(pipeline->unsettled(), 0u) << "one step does not take the whole turn of the loop";
    for (int turn = 0; turn < 100 && pipeline->unsettled() > 0; turn++) {
        ASSERT_LE(pipeline->deadline(), clock.now())
            << pipeline->unsettled()
            << " events could go, none is in flight, and nobody is to come";
        step();
    }
    EXPECT_EQ(pipeline->unsettled(), 0u);
}

// ---------------------------------------------------------------------------------------------
// Memory
// ---------------------------------------------------------------------------------------------

class PipelineMemory : public PipelineTest {
  protected:
    const std::size_t block_bytes = usual_block_bytes();
};

TEST_F(PipelineMemory, HasRoomUntilMaxEventsAreNotSettled) {
    start(single_events, {.max_events = 3});
    window({{{1}, {2}}});
    EXPECT_TRUE(pipeline->has_room());
    window({{{3}}});
    EXPECT_FALSE(pipeline->has_room());
    step();
    confirm(2);
    EXPECT_TRUE(pipeline->has_room());
}

TEST_F(PipelineMemory, HasRoomUntilItsBlocksHoldMaxBytes) {
    start(single_events, {.max_bytes = 2 * block_bytes});
    window({{{1}}});
    EXPECT_TRUE(pipeline->has_room());
    window({{{2}}});
    EXPECT_FALSE(pipeline->has_room());
    step();
    confirm(1);
    EXPECT_TRUE(pipeline->has_room());
}

TEST_F(PipelineMemory, HasRoomUntilTooManyEventsAreSettledBehindASlowOne) {
    start(single_events, {.max_events = 2, .moves_waiting = false});
    constexpr std::int64_t limit = 2 * Pipeline::max_span_factor;
    window({{{1}}});
    step();
    for (std::int64_t position = 2; position <= limit; position++) {
        ASSERT_TRUE(pipeline->has_room()) << "before event " << position;
        window({{{position}}});
        step();
        confirm(position);
    }
    EXPECT_EQ(pipeline->unsettled(), 1u);
    EXPECT_FALSE(pipeline->has_room()) << "a crash now would repeat " << limit - 1 << " events";
    confirm(1);
    EXPECT_TRUE(pipeline->has_room());
}

TEST_F(PipelineMemory, TheSpanCountsFromTheFirstEventThatIsNotSettled) {
    start({.max_batches = 64}, {.max_events = 2, .moves_waiting = false});
    std::vector<EventSpec> events;
    for (std::int64_t position = 1; position <= 33; position++)
        events.push_back({position});
    window({events});
    step();
    for (std::int64_t position = 33; position > 3; position--)
        sink->confirm(position);
    confirm(2);
    EXPECT_EQ(pipeline->unsettled(), 2u);
    confirm(3);
    EXPECT_EQ(pipeline->unsettled(), 1u);
    EXPECT_FALSE(pipeline->has_room()) << "33 events from the first one on";
    window({{{34}}});
    step();
    confirm(1);
    EXPECT_TRUE(pipeline->has_room()) << "one event, which is the last";
}

TEST_F(PipelineMemory, BlocksSettledOutOfOrderAreFreedAtOnce) {
    start(single_events, {.max_bytes = 3 * block_bytes});
    window({{{1}, {2}}, {{3}, {4}}, {{5}, {6}}});
    step();
    EXPECT_FALSE(pipeline->has_room());
    confirm(3);
    EXPECT_FALSE(pipeline->has_room()) << "half of it is not settled";
    confirm(4);
    EXPECT_TRUE(pipeline->has_room()) << "the block in the middle is free";
}

TEST_F(PipelineMemory, BlocksOfLaterWindowsAreFreedBeforeTheFirstWindowIsSettled) {
    start(single_events, {.max_bytes = 3 * block_bytes});
    window({{{1}}});
    window({{{2}}, {{3}}});
    step();
    EXPECT_FALSE(pipeline->has_room());
    confirm(2);
    EXPECT_TRUE(pipeline->has_room());
    window({{{4}}});
    step();
    EXPECT_FALSE(pipeline->has_room());
    confirm(3);
    EXPECT_TRUE(pipeline->has_room());
}

TEST_F(PipelineMemory, AnEventLargerThanAllOfItStillGoesAlone) {
    start(single_events, {.max_bytes = block_bytes});
    ASSERT_TRUE(pipeline->has_room());
    window({{{1, "", std::string(4 * block_bytes, 'x')}}});
    EXPECT_FALSE(pipeline->has_room());
    step();
    confirm(1);
    EXPECT_TRUE(pipeline->has_room()) << "its block is accounted for as large as it was";
    window({{{2}}});
    EXPECT_FALSE(pipeline->has_room());
}

TEST_F(PipelineMemory, ABlockThatIsPutBackTakesNothing) {
    start(single_events, {.max_bytes = 1});
    for (int i = 0; i < 20; i++) {
        EventBlock* block = pipeline->take_block();
        ASSERT_TRUE(append(*block, {.position = 1}));
        pipeline->put_back(block);
    }
    EXPECT_TRUE(pipeline->has_room());
    EXPECT_TRUE(pipeline->idle());
}

TEST_F(PipelineMemory, FreedBlocksAreUsedAgainAndBlank) {
    start(single_events);
    window({{{1}}});
    step();
    EventBlock* const freed = sink->batches().front()->events.front()->tracked->block;
    confirm(1);
    EventBlock* const taken = pipeline->take_block();
    EXPECT_EQ(taken, freed);
    EXPECT_TRUE(taken->empty());
    pipeline->put_back(taken);
}

TEST_F(PipelineMemory, BatchesAreUsedAgain) {
    start({.max_batches = 2});
    std::set<const Batch*> batches;
    sink->on_submit = [&](const Batch& batch) { batches.insert(&batch); };
    for (std::int64_t position = 1; position <= 20; position++)
        window({{{position}}});
    confirm_everything();
    EXPECT_EQ(stats.delivered, 20u);
    EXPECT_EQ(batches.size(), 2u);
}

// ---------------------------------------------------------------------------------------------
// Settlement
// ---------------------------------------------------------------------------------------------

class PipelineSettlement : public PipelineTest {};

TEST_F(PipelineSettlement, TheWatermarkStopsBeforeTheFirstUnsettledEvent) {
    start(single_events);
    pipeline->open_window();
    admit({{10}, {20}, {30}, {40}});
    step();
    EXPECT_EQ(pipeline->front_position(), std::nullopt);
    confirm(20);
    EXPECT_EQ(pipeline->front_position(), std::nullopt) << "event 10 is before it";
    confirm(10);
    EXPECT_EQ(pipeline->front_position(), 20);
    confirm(40);
    EXPECT_EQ(pipeline->front_position(), 20);
    confirm(30);
    EXPECT_EQ(pipeline->front_position(), 40);
}

TEST_F(PipelineSettlement, TheWatermarkPassesBlocksThatWereFreedOutOfOrder) {
    start(single_events);
    pipeline->open_window();
    admit({{1}, {2}});
    admit({{3}, {4}});
    admit({{5}, {6}});
    admit({{7}, {8}});
    step();
    for (std::int64_t position : {6, 5, 4, 3, 2}) {
        confirm(position);
        ASSERT_EQ(pipeline->front_position(), std::nullopt) << "after event " << position;
    }
    confirm(1);
    EXPECT_EQ(pipeline->front_position(), 6);
    confirm(7);
    EXPECT_EQ(pipeline->front_position(), 7);
}

TEST_F(PipelineSettlement, TheWatermarkSpeaksOfTheFrontWindowOnly) {
    start(single_events);
    window({{{10}, {20}}});
    window({{{5}, {15}}});  // committed later, with lower positions
    step();
    confirm(5);
    EXPECT_EQ(pipeline->front_position(), std::nullopt);
    confirm(10);
    EXPECT_EQ(pipeline->front_position(), 10);
    confirm(20);
    EXPECT_EQ(pipeline->front_position(), 5) << "the second window is the front now";
    confirm(15);
    EXPECT_EQ(pipeline->front_position(), std::nullopt) << "there is no window";
}

TEST_F(PipelineSettlement, WindowsSettleStrictlyInOrder) {
    start(single_events);
    window({{{1}}});
    window({{{2}}});
    window({{{3}}});
    step();
    confirm(3);
    confirm(2);
    EXPECT_EQ(pipeline->take_settled_windows(), 0u);
    confirm(1);
    EXPECT_EQ(pipeline->take_settled_windows(), 3u);
}

TEST_F(PipelineSettlement, SettledWindowsAreReportedOnce) {
    start(single_events);
    window({{{1}}});
    step();
    confirm(1);
    EXPECT_EQ(pipeline->take_settled_windows(), 1u);
    EXPECT_EQ(pipeline->take_settled_windows(), 0u);
}

TEST_F(PipelineSettlement, AWindowIsNotSettledWhileItIsStillRead) {
    start(single_events);
    pipeline->open_window();
    admit({{1}});
    step();
    confirm(1);
    EXPECT_EQ(pipeline->take_settled_windows(), 0u);
    EXPECT_FALSE(pipeline->idle());
    EXPECT_EQ(pipeline->front_position(), 1);
    admit({{2}});
    step();
    confirm(2);
    EXPECT_EQ(pipeline->front_position(), 2);
    pipeline->close_window();
    EXPECT_EQ(pipeline->take_settled_windows(), 1u);
    EXPECT_TRUE(pipeline->idle());
}

TEST_F(PipelineSettlement, AnEmptyWindowIsSettledWhenItIsClosed) {
    start(single_events);
    pipeline->open_window();
    EXPECT_FALSE(pipeline->idle());
    EXPECT_EQ(pipeline->take_settled_windows(), 0u);
    pipeline->close_window();
    EXPECT_EQ(pipeline->take_settled_windows(), 1u);
    EXPECT_TRUE(pipeline->idle());
    EXPECT_EQ(pipeline->highest_settled(), 0);
}

TEST_F(PipelineSettlement, AnEmptyWindowWaitsForTheOnesBeforeIt) {
    start(single_events);
    window({{{1}}});
    window({});
    window({});
    window({{{2}}});
    step();
    EXPECT_EQ(pipeline->take_settled_windows(), 0u);
    confirm(1);
    EXPECT_EQ(pipeline->take_settled_windows(), 3u);
    confirm(2);
    EXPECT_EQ(pipeline->take_settled_windows(), 1u);
}

TEST_F(PipelineSettlement, HighestSettledIsOfAllSettledWindows) {
    start(single_events);
    window({{{10}, {20}}});
    window({{{5}, {15}}});
    window({{{30}}});
    step();
    confirm(20);
    EXPECT_EQ(pipeline->highest_settled(), 0) << "no window is settled";
    confirm(10);
    EXPECT_EQ(pipeline->highest_settled(), 20);
    confirm(5);
    confirm(15);
    EXPECT_EQ(pipeline->highest_settled(), 20) << "the second window was all below it";
    confirm(30);
    EXPECT_EQ(pipeline->highest_settled(), 30);
}

TEST_F(PipelineSettlement, OldestIsTheFirstEventThatIsNotSettled) {
    start(single_events);
    EXPECT_EQ(pipeline->oldest(), std::nullopt);
    window({{{.position = 1, .occurred_at = 300}, {.position = 2, .occurred_at = 100}},
            {{.position = 3, .occurred_at = 200}}});
    window({{{.position = 4, .occurred_at = 50}}});
    EXPECT_EQ(pipeline->oldest(), 300) << "the first to be delivered, not the smallest time";
    step();
    confirm(3);
    EXPECT_EQ(pipeline->oldest(), 300);
    confirm(1);
    EXPECT_EQ(pipeline->oldest(), 100);
    confirm(2);
    EXPECT_EQ(pipeline->oldest(), 50);
    confirm(4);
    EXPECT_EQ(pipeline->oldest(), std::nullopt);
}

TEST_F(PipelineSettlement, IsCountedWithTheLatencySinceTheEventOccurred) {
    start(single_events);
    window({{{.position = 1, .payload = "12345", .occurred_at = clock.unix_now() - 4}}});
    step();
    EXPECT_EQ(stats.delivered, 0u);
    clock.advance(3);
    confirm(1);
    EXPECT_EQ(stats.delivered, 1u);
    EXPECT_EQ(stats.bytes, 5u);
    EXPECT_EQ(stats.latency.percentile(1.0), 7);
}

TEST_F(PipelineSettlement, OldLatenciesAreForgottenAlsoWhenTheWallClockIsSetBack) {
    start(single_events);
    auto deliver = [&](std::int64_t position, Micros latency) {
        window({{{.position = position, .occurred_at = clock.unix_now() - latency}}});
        step();
        confirm(position);
    };
    deliver(1, 3);
    clock.set_unix(clock.unix_now() - seconds(86'400));
    for (std::int64_t position = 2; position < 6; position++) {
        clock.advance(LatencyHistogram::generation_length);
        deliver(position, 7);
    }
    EXPECT_EQ(stats.latency.percentile(0.0), 7) << "the first latency is four minutes old";
}

TEST_F(PipelineSettlement, EverythingIsSettledAfterManyWindows) {
    start({.max_batch_events = 7, .max_batches = 3}, {.max_bytes = 1});
    std::int64_t position = 0;
    for (int i = 0; i < 100; i++) {
        std::vector<EventSpec> events;
        for (int n = 0; n < i % 20 + 1; n++, position++)
            events.push_back({position + 1, position % 3 == 0 ? "" : std::to_string(position % 5)});
        window({events});
        if (i % 3 == 0) {
            ASSERT_NO_FATAL_FAILURE(confirm_everything());
        }
    }
    ASSERT_NO_FATAL_FAILURE(confirm_everything());
    EXPECT_EQ(stats.delivered, static_cast<std::uint64_t>(position));
    EXPECT_EQ(pipeline->take_settled_windows(), 100u);
    EXPECT_EQ(pipeline->highest_settled(), position);
    EXPECT_TRUE(pipeline->idle());
    EXPECT_TRUE(pipeline->has_room()) << "not a byte is held";
}

// ---------------------------------------------------------------------------------------------
// With a real sink
// ---------------------------------------------------------------------------------------------

TEST(PipelineWithNullSink, SettlesEverythingInOneStep) {
    FakeClock clock;
    DeliveryStats stats;
    Pipeline pipeline(create_null_sink(), {}, clock, stats, 1);
    std::int64_t position = 0;
    for (int i = 0; i < 10; i++) {
        pipeline.open_window();
        EventBlock* block = pipeline.take_block();
        while (append(*block, {.position = ++position, .key = "a"})) {
        }
        pipeline.admit(block);
        pipeline.close_window();
    }
    pipeline.step();
    EXPECT_TRUE(pipeline.idle());
    EXPECT_EQ(stats.delivered, 10 * EventBlock::max_events);
    EXPECT_EQ(pipeline.take_settled_windows(), 10u);
}

}  // namespace
}  // namespace outbox
