// Events in trouble: which of them are at fault, what is recorded, and which keys are held. The
// second half runs the pipeline at random against a simulation of the table outbox.delivery.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <set>

#include "core/limits.hpp"
#include "core/pipeline/pipeline.hpp"
#include "scripted_sink.hpp"
#include "unit/event_spec.hpp"
#include "unit/fake_clock.hpp"
#include "unit/many.hpp"

namespace outbox {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = Record::Kind;
using Batches = std::vector<Positions>;

class PipelineTrouble : public testing::Test {
  protected:
    void start(const Capabilities& capabilities) {
        auto scripted = std::make_unique<ScriptedSink>(capabilities);
        sink = scripted.get();
        pipeline = std::make_unique<Pipeline>(std::move(scripted), limits, clock, stats, 42);
    }
    EventBlock* block_of(const std::vector<EventSpec>& events) {
        EventBlock* block = pipeline->take_block();
        for (const EventSpec& event : events)
            EXPECT_TRUE(append(*block, event));
        return block;
    }
    void window(const std::vector<EventSpec>& events) {
        pipeline->open_window();
        pipeline->admit(block_of(events));
        pipeline->close_window();
        step();
    }
    void retries(const std::vector<EventSpec>& events) {
        pipeline->admit_retries(block_of(events));
        step();
    }
    void step() { pipeline->step(); }
    void confirm(std::int64_t position) {
        sink->confirm(position);
        step();
    }
    void fail(std::int64_t position, Fate fate, bool permanent = false, Micros retry_after = 0) {
        sink->fail(position, "why", retry_after, fate, permanent);
        step();
    }
    // Moves the clock to the deadline of the pipeline.
    void wait() {
        ASSERT_NE(pipeline->deadline(), never) << "nothing would ever wake the relay";
        clock.advance_to(pipeline->deadline());
        step();
    }
    std::vector<std::pair<std::int64_t, Kind>> records() const {
        std::vector<std::pair<std::int64_t, Kind>> result;
        pipeline->gather_records();
        for (const Record& record : pipeline->records())
            result.emplace_back(record.event->position, record.kind);
        return result;
    }

    static constexpr Pipeline::Limits limits{.backoff_base = milliseconds(100),
                                             .backoff_cap = seconds(1)};
    FakeClock clock;
    DeliveryStats stats;
    ScriptedSink* sink = nullptr;
    std::unique_ptr<Pipeline> pipeline;
};

constexpr Capabilities single_events{.max_batches = 8};
constexpr Capabilities batched{.max_batch_events = 8, .max_batches = 4};
constexpr Capabilities ordered{.max_batch_events = 4, .max_batches = 4, .ordered = true};

// ---------------------------------------------------------------------------------------------
// Refused events
// ---------------------------------------------------------------------------------------------

// An operator may end what holds the key meanwhile. What is not parked yet must not be overtaken.
TEST_F(PipelineTrouble, AKeyStaysHeldWhileEventsOfItWaitToBeParked) {
    start(single_events);
    pipeline->hold_key("a");
    window({{1, "a"}, {2, "b"}});
    EXPECT_EQ(pipeline->unsettled(), 2u);
    pipeline->free_key("a");
    window({{3, "a"}});
    pipeline->hold_keys({});
    window({{4, "a"}});
    EXPECT_EQ(sink->in_flight(), (Batches{{2}}));
    EXPECT_THAT(records(), ElementsAre(std::pair(1, Kind::parked), std::pair(3, Kind::parked),
                                       std::pair(4, Kind::parked)));
    confirm(2);
    pipeline->recorded();
    EXPECT_TRUE(pipeline->idle());
    pipeline->free_key("a");
    window({{5, "a"}});
    EXPECT_EQ(sink->in_flight(), (Batches{{5}}));
}

TEST_F(PipelineTrouble, ARefusedEventIsRecordedWithTheEventsBehindIt) {
    start(single_events);
    window({{1, "a"}, {2, "b"}, {3, "a"}, {4, "a"}});
    fail(1, Fate::refused, true);
    EXPECT_THAT(records(), ElementsAre(std::pair(1, Kind::refused), std::pair(3, Kind::parked),
                                       std::pair(4, Kind::parked)));
    EXPECT_EQ(pipeline->records().front().error, "why");
    EXPECT_TRUE(pipeline->records().front().permanent);
    EXPECT_FALSE(pipeline->backing_off());
    confirm(2);
    EXPECT_THAT(sink->in_flight(), IsEmpty());
    EXPECT_EQ(pipeline->unsettled(), 3u) << "not settled before it is recorded";
    EXPECT_EQ(pipeline->front_position(), std::nullopt);
    pipeline->recorded();
    EXPECT_TRUE(pipeline->idle());
    EXPECT_EQ(pipeline->take_settled_windows(), 1u);
    EXPECT_EQ(stats.delivered, 1u);
}

TEST_F(PipelineTrouble, LaterEventsOfAHeldKeyAreParkedUntilItIsFree) {
    start(single_events);
    window({{1, "a"}});
    fail(1, Fate::refused);
    window({{2, "a"}, {3, "b"}});
    EXPECT_THAT(records(), ElementsAre(std::pair(1, Kind::refused), std::pair(2, Kind::parked)));
    EXPECT_EQ(sink->in_flight(), (Batches{{3}}));
    pipeline->recorded();
    pipeline->free_key("a");
    EXPECT_EQ(pipeline->held_keys(), 0u);
    window({{4, "a"}});
    EXPECT_EQ(sink->in_flight(), (Batches{{3}, {4}}));
}

TEST_F(PipelineTrouble, AKeyHeldLaterParksEventsReadBefore) {
    start({.max_batches = 1});
    window({{1, "b"}, {2, "a"}, {3, "a"}});
    pipeline->hold_key("a");
    confirm(1);
    EXPECT_THAT(sink->in_flight(), IsEmpty());
    EXPECT_THAT(records(), ElementsAre(std::pair(2, Kind::parked), std::pair(3, Kind::parked)));
}

TEST_F(PipelineTrouble, UnorderedEventsHoldNothing) {
    start(single_events);
    window({{1}, {2}});
    fail(1, Fate::refused);
    EXPECT_EQ(pipeline->held_keys(), 0u);
    EXPECT_THAT(records(), ElementsAre(std::pair(1, Kind::refused)));
}

TEST_F(PipelineTrouble, ARefusedBatchIsHalvedUntilTheOffenderIsAlone) {
    start(batched);
    window({{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}});
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2, 3, 4, 5, 6, 7, 8}}));
    fail(1, Fate::refused);
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2, 3, 4}, {5, 6, 7, 8}}));
    confirm(1);
    fail(5, Fate::refused);
    fail(5, Fate::refused);
    confirm(7);
    fail(5, Fate::refused);
    confirm(6);
    EXPECT_THAT(records(), ElementsAre(std::pair(5, Kind::refused)));
    pipeline->recorded();
    EXPECT_TRUE(pipeline->idle());
}

TEST_F(PipelineTrouble, AnOrderedSinkGetsUndoneEventsAgain) {
    start(ordered);
    window({{1, "a"}, {2, "b"}, {3, "a"}, {4, "b"}, {5, "b"}, {6, "a"}});
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2, 3, 4}, {5, 6}}));
    fail(1, Fate::refused);  // event 2 is undone with it
    EXPECT_FALSE(pipeline->backing_off());
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 2}, {3, 4}, {5, 6}}));
    fail(1, Fate::refused);
    EXPECT_EQ(sink->in_flight(), (Batches{{1}, {2}, {3, 4}, {5, 6}}));
    fail(1, Fate::refused);
    EXPECT_EQ(sink->in_flight(), (Batches{{2}, {4, 5}}));
    EXPECT_THAT(records(), ElementsAre(std::pair(1, Kind::refused), std::pair(3, Kind::parked),
                                       std::pair(6, Kind::parked)));
}

TEST_F(PipelineTrouble, ABatchTakenInPartIsSettledInPartAndTheRestIsSentAgain) {
    start(batched);
    window({{1}, {2}, {3}});
    sink->divide(1, {{Fate::confirmed}, {Fate::refused, "too long", true}, {Fate::failed, "oops"}});
    step();
    EXPECT_THAT(records(), ElementsAre(std::pair(2, Kind::refused)));
    EXPECT_EQ(pipeline->records().front().error, "too long");
    EXPECT_TRUE(pipeline->records().front().permanent);
    EXPECT_EQ(pipeline->unsettled(), 2u);
    EXPECT_FALSE(pipeline->backing_off()) << "it works for others";
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{3}}));
}

// Events 1 and 3 were not taken. 3 is sent again after 1, and 4 after both, although 2 has arrived.
TEST_F(PipelineTrouble, TheRestOfAKeyIsSentAgainInOrder) {
    start(batched);
    window({{1, "k"}, {2, "k"}, {3, "k"}});
    window({{4, "k"}, {5, "k"}});
    ASSERT_EQ(sink->in_flight(), (Batches{{1, 2, 3}}));
    sink->divide(1, {{Fate::failed, "a"}, {Fate::confirmed}, {Fate::refused, "b"}});
    step();
    EXPECT_THAT(records(), IsEmpty()) << "3 is not asked before 1 has arrived";
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{1, 3, 4, 5}}));
    sink->divide(1, {{Fate::confirmed}, {Fate::confirmed}, {Fate::confirmed}, {Fate::failed, "c"}});
    step();
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{5}}));
    confirm(5);
    EXPECT_TRUE(pipeline->idle());
}

TEST_F(PipelineTrouble, ABatchWithoutATakenEventCountsAsOneFailedRequest) {
    start({.max_batch_events = 2, .max_batches = 4});
    window({{1}, {2}, {3}, {4}, {5}, {6}});
    for (std::int64_t first : {1, 3}) {
        sink->divide(first, {{Fate::failed, "a"}, {Fate::failed, "a"}});
        step();
        EXPECT_FALSE(pipeline->backing_off());
    }
    sink->divide(5, {{Fate::failed, "a"}, {Fate::failed, "a"}});
    step();
    EXPECT_TRUE(pipeline->backing_off());
}

TEST_F(PipelineTrouble, APauseThatTheDestinationAskedForIsKnownAndCanBeEnded) {
    for (const Fate fate : {Fate::throttled, Fate::unavailable, Fate::failed}) {
        SCOPED_TRACE(static_cast<int>(fate));
        start({.max_batch_events = 1, .max_batches = 1});
        window({{1}});
        fail(1, fate, false, seconds(3600));
        EXPECT_THAT(sink->in_flight(), IsEmpty());
        const Micros until = clock.now() + seconds(3600);
        if (fate != Fate::failed) {
            EXPECT_EQ(pipeline->next_attempt(), until);
        }
        clock.advance(seconds(60));
        step();
        EXPECT_THAT(sink->in_flight(), IsEmpty());
        pipeline->forget_waits();
        step();
        EXPECT_EQ(sink->in_flight().size(), 1u);
        confirm(1);
        EXPECT_EQ(pipeline->unsettled(), 0u);
    }
}

TEST_F(PipelineTrouble, ThrottledEventsOfABatchGoAgainAndTheDestinationIsNotLeftAlone) {
    start(batched);
    window({{1}, {2}, {3}});
    sink->divide(1, {{Fate::throttled, "slow down"}, {Fate::confirmed}, {Fate::throttled, "s"}});
    step();
    EXPECT_FALSE(pipeline->backing_off());
    EXPECT_EQ(stats.throttled_answers, 1u);
    EXPECT_THAT(records(), IsEmpty());
    while (pipeline->unsettled() > 0) {
        if (sink->in_flight().empty())
            wait();
        sink->confirm_everything();
        step();
    }
}

TEST_F(PipelineTrouble, WhenEverythingIsRefusedTheDestinationIsBackedOffFrom) {
    start({.max_batches = 1});
    std::vector<EventSpec> events;
    for (int i = 1; i <= 20; i++)
        events.push_back({i, "k" + std::to_string(i)});
    window(events);
    for (unsigned i = 1; i <= LaneHealth::max_refused_in_a_row; i++) {
        fail(i, Fate::refused);
        EXPECT_FALSE(pipeline->backing_off()) << i;
    }
    fail(LaneHealth::max_refused_in_a_row + 1, Fate::refused);
    EXPECT_TRUE(pipeline->backing_off());
    wait();
    confirm(LaneHealth::max_refused_in_a_row + 2);
    EXPECT_EQ(pipeline->failures(), 0u);
}

TEST_F(PipelineTrouble, RefusalsOfKeysRefusedBeforeSayNothingAboutTheLane) {
    start({.max_batches = 1});
    for (int i = 1; i <= 2 * static_cast<int>(LaneHealth::max_refused_in_a_row); i++) {
        retries({{.position = i, .key = "k" + std::to_string(i), .key_failed = true}});
        fail(i, Fate::refused);
        ASSERT_EQ(pipeline->lanes_down(), 0u) << i;
    }
    window({{.position = 100, .key = "fresh"}});
    EXPECT_EQ(sink->in_flight(), (Batches{{100}})) << "at once";
}

// ---------------------------------------------------------------------------------------------
// Requests that fail
// ---------------------------------------------------------------------------------------------

TEST_F(PipelineTrouble, ARequestThatFailsAmongOthersGoesAgainAloneAndSoon) {
    start(single_events);
    window({{1, "a"}, {2, "b"}, {3, "a"}});
    fail(1, Fate::failed);
    EXPECT_FALSE(pipeline->backing_off());
    EXPECT_EQ(sink->in_flight(), (Batches{{2}}));
    window({{4, "c"}});
    EXPECT_EQ(sink->in_flight(), (Batches{{2}, {4}}));
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{2}, {4}, {1}}));
    confirm(1);
    EXPECT_EQ(sink->in_flight(), (Batches{{2}, {4}, {3}}));
    EXPECT_THAT(records(), IsEmpty());
}

TEST_F(PipelineTrouble, SeveralFailedRequestsInARowAreTheDestinationsFailure) {
    start(single_events);
    window({{1}, {2}, {3}, {4}, {5}});
    for (std::int64_t position : {1, 2, 3}) {
        fail(position, Fate::failed);
        EXPECT_FALSE(pipeline->backing_off());
    }
    fail(4, Fate::failed);
    EXPECT_TRUE(pipeline->backing_off());
    EXPECT_THAT(records(), IsEmpty());
}

TEST_F(PipelineTrouble, AnEventThatFailsWhileOthersSucceedIsAtFault) {
    start(single_events);
    window({{1, "a"}, {2, "a"}});
    for (unsigned i = 1; i <= Pipeline::failures_of_event; i++) {
        EXPECT_THAT(records(), IsEmpty()) << i;
        fail(1, Fate::failed);
        window({{10 + i}});
        confirm(10 + i);
        if (i < Pipeline::failures_of_event)
            wait();
    }
    EXPECT_FALSE(pipeline->backing_off());
    EXPECT_THAT(records(), ElementsAre(std::pair(1, Kind::refused), std::pair(2, Kind::parked)));
}

// Simulates a receiver that accepts no new connections, but answers on existing ones.
TEST_F(PipelineTrouble, AnEventThatFindsNoConnectionIsNotAtFault) {
    start(single_events);
    window({{1, "a"}});
    for (unsigned i = 1; i <= 2 * Pipeline::unavailable_to_event; i++) {
        sink->fail_in(1, Fate::unavailable, Scope::connection);
        step();
        window({{100 + i}});
        while (sink->in_flight().empty())
            wait();
        confirm(100 + i);
        while (sink->in_flight().empty())
            wait();
        EXPECT_EQ(sink->in_flight(), (Batches{{1}}));
        ASSERT_THAT(records(), IsEmpty()) << i;
    }
}

TEST_F(PipelineTrouble, OneLostAnswerDoesNotCountAsAnAttemptOfARetry) {
    start(single_events);
    EventBlock* block = block_of({{1, "a"}});
    block->events().front().has_failed = true;
    pipeline->admit_retries(block);
    step();
    sink->fail_in(1, Fate::failed, Scope::connection);
    step();
    EXPECT_THAT(records(), IsEmpty());
    wait();
    sink->fail_in(1, Fate::failed, Scope::connection);
    step();
    EXPECT_THAT(records(), ElementsAre(std::pair(1, Kind::refused)));
}

TEST_F(PipelineTrouble, TheProbeIsNotTheEventThatFailed) {
    start({.max_batches = 1});
    window({{1}, {2}, {3}});
    fail(1, Fate::failed);
    fail(2, Fate::failed);
    fail(3, Fate::failed);
    window({{4}});
    ASSERT_TRUE(pipeline->backing_off());
    wait();
    EXPECT_EQ(sink->in_flight(), (Batches{{4}}));
}

TEST_F(PipelineTrouble, FailuresOfADestinationThatIsDownAreNotTheEvents) {
    start({.max_batches = 1});
    window({{1}});
    for (int i = 0; i < 20; i++) {
        fail(1, Fate::failed);
        while (sink->in_flight().empty())  // the back-off, then the pause of the event
            wait();
        EXPECT_EQ(sink->in_flight(), (Batches{{1}})) << i;
    }
    EXPECT_THAT(records(), IsEmpty());
}

// ---------------------------------------------------------------------------------------------
// Retries
// ---------------------------------------------------------------------------------------------

TEST_F(PipelineTrouble, ARetryGoesThoughItsKeyIsHeldAndIsRecordedWhenConfirmed) {
    for (const Capabilities& capabilities : {single_events, ordered}) {
        start(capabilities);
        pipeline->hold_key("a");
        retries({{1, "a"}, {2, "a"}});
        const bool together = capabilities.max_batch_events > 1;
        EXPECT_EQ(sink->in_flight(), together ? (Batches{{1, 2}}) : (Batches{{1}}));
        confirm(1);
        if (!together)
            confirm(2);
        EXPECT_THAT(records(),
                    ElementsAre(std::pair(1, Kind::confirmed), std::pair(2, Kind::confirmed)));
        pipeline->recorded();
        EXPECT_TRUE(pipeline->idle());
    }
}

TEST_F(PipelineTrouble, RetriesHaveRoomWhileTheLogFillsTheRest) {
    start(single_events);
    std::vector<EventSpec> events;
    for (std::int64_t i = 1; pipeline->has_room(); i += 100) {
        events.clear();
        for (std::int64_t j = i; j < i + 100; j++)
            events.push_back({j, "k" + std::to_string(j)});
        window(events);
    }
    EXPECT_TRUE(pipeline->wants_retries());
}

TEST_F(PipelineTrouble, ARetryThatIsRefusedAgainHoldsBackTheOnesBehindIt) {
    start(single_events);
    pipeline->hold_key("a");
    retries({{1, "a"}, {2, "a"}, {3}});
    fail(1, Fate::refused);
    EXPECT_THAT(records(), ElementsAre(std::pair(1, Kind::refused), std::pair(2, Kind::unsent)));
    confirm(3);
    pipeline->recorded();
    EXPECT_TRUE(pipeline->idle());
}

// Only LeakSanitizer, at the end of the program, finds a failure of this test.
TEST_F(PipelineTrouble, RetriesUnderWayEndWithThePipeline) {
    start(single_events);
    retries({{1, "a"}, {2, "a"}});
    retries({{3}});
    confirm(3);  // its block becomes spare once it is recorded
    pipeline->recorded();
    EXPECT_EQ(pipeline->unsettled(), 2u);
    pipeline.reset();
}

TEST_F(PipelineTrouble, RetriesDoNotMoveTheCursor) {
    start(single_events);
    retries({{1}});
    window({{7}});
    confirm(1);
    pipeline->recorded();
    EXPECT_EQ(pipeline->front_position(), std::nullopt);
    EXPECT_EQ(pipeline->take_settled_windows(), 0u);
    confirm(7);
    EXPECT_EQ(pipeline->highest_settled(), 7);
}

TEST_F(PipelineTrouble, TooManyHeldKeysStopReadingButNotRetries) {
    start(single_events);
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < max_held_keys; i++)
        keys.push_back(std::to_string(i));
    pipeline->hold_keys(std::move(keys));
    EXPECT_FALSE(pipeline->has_room());
    EXPECT_TRUE(pipeline->wants_retries());
    pipeline->free_key("7");
    EXPECT_TRUE(pipeline->has_room());
}

// ---------------------------------------------------------------------------------------------
// Pause
// ---------------------------------------------------------------------------------------------

TEST_F(PipelineTrouble, APauseLetsRequestsInFlightEndAndSendsNothingMore) {
    start({.max_batches = 1});
    window({{1}, {2}});
    pipeline->pause(true);
    confirm(1);
    EXPECT_THAT(sink->in_flight(), IsEmpty());
    EXPECT_FALSE(pipeline->wants_retries());
    EXPECT_EQ(pipeline->deadline(), never);
    pipeline->pause(false);
    EXPECT_LE(pipeline->deadline(), clock.now());
    step();
    EXPECT_EQ(sink->in_flight(), (Batches{{2}}));
}

// ---------------------------------------------------------------------------------------------
// Random runs
// ---------------------------------------------------------------------------------------------

// Simulates the log, a relay with its table, and a destination that refuses. `truth` says for every
// event, in order of enqueueing, whether it is settled.
class TroubledRun {
  public:
    explicit TroubledRun(std::uint64_t seed) : random_(seed) {
        Capabilities capabilities{.max_batch_events = 1 + below(5),
                                  .max_batches = 1 + below(6),
                                  .ordered = below(3) == 0};
        if (!capabilities.ordered) {
            capabilities.keys = std::array{KeyPolicy::mixed, KeyPolicy::mixed, KeyPolicy::one_each,
                                           KeyPolicy::alone}[below(4)];
            capabilities.lanes = below(2) == 0;
        }
        blocks_ = below(2) == 0;
        auto sink = std::make_unique<ScriptedSink>(capabilities);
        sink_ = sink.get();
        sink_->on_submit = [this](const Batch& batch) { check_order(batch); };
        pipeline_ = std::make_unique<Pipeline>(
            std::move(sink),
            Pipeline::Limits{.max_events = 200, .backoff_base = 10, .backoff_cap = 100}, clock_,
            stats_, seed);
    }

    void go() {
        for (int turn = 0; turn < 600 && !testing::Test::HasFailure(); turn++)
            act(true);
        for (int turn = 0; turn < 20'000 && !done() && !testing::Test::HasFailure(); turn++)
            act(false);
        EXPECT_TRUE(done()) << table_.size() << " rows, " << pipeline_->unsettled() << " unsettled";
        for (const auto& [position, event] : truth_)
            EXPECT_TRUE(event.delivered || event.dead || event.behind_a_dead_one)
                << "event " << position << " is lost";
    }

  private:
    struct Truth {
        std::string key;
        bool delivered = false, dead = false, behind_a_dead_one = false, in_flight = false;
        const Batch* batch = nullptr;
    };
    struct Row {
        std::string key;
        bool failed = false;  // RETRY, otherwise PENDING
        bool dead = false;
        bool locked = false;
        int attempts = 0;
    };

    std::size_t below(std::size_t n) { return random_() % n; }

    bool done() const {
        return pipeline_->idle() && !pipeline_->has_records() &&
               std::all_of(table_.begin(), table_.end(), [&](const auto& row) {
                   return row.second.dead || truth_.at(row.first).behind_a_dead_one;
               });
    }

    void act(bool trouble) {
        switch (below(6)) {
            case 0:
                if (trouble && pipeline_->has_room())
                    read();
                break;
            case 1:
                record();
                break;
            case 2:
                if (pipeline_->wants_retries())
                    load();
                break;
            case 3:
                if (pipeline_->deadline() != never)
                    clock_.advance_to(std::max(clock_.now(), pipeline_->deadline()));
                break;
            default:
                answer(trouble);
        }
        pipeline_->step();
    }

    void read() {
        pipeline_->open_window();
        EventBlock* block = pipeline_->take_block();
        for (std::size_t n = 1 + below(6); n > 0; n--) {
            const std::string key = below(5) == 0 ? "" : std::string(1, char('a' + below(4)));
            truth_[++last_].key = key;
            append(*block,
                   {.position = last_, .key = key, .topic = std::string(1, char('A' + below(3)))});
        }
        pipeline_->admit(block);
        pipeline_->close_window();
    }

    // Earlier events of the key must be settled, or be in front in the batch. If the sink keeps the
    // order, they may also be in flight.
    void check_order(const Batch& batch) {
        for (const Event* event : batch.events) {
            Truth& self = truth_.at(event->position);
            EXPECT_FALSE(self.in_flight) << "event " << event->position << " is on its way twice";
            EXPECT_FALSE(self.delivered) << "event " << event->position << " is delivered twice";
            for (const auto& [position, other] : truth_) {
                if (position >= event->position || self.key.empty() || other.key != self.key)
                    continue;
                const bool settled = other.delivered || (other.dead && !blocks_);
                const bool before =
                    other.in_flight && (other.batch == &batch || sink_->capabilities().ordered);
                EXPECT_TRUE(settled || before)
                    << "event " << event->position << (event->retry ? " (retry)" : "")
                    << " overtakes " << position << (other.in_flight ? ", in flight" : "")
                    << (table_.contains(position) ? ", in the table" : "");
            }
            self.in_flight = true;
            self.batch = &batch;
        }
    }

    void answer(bool trouble) {
        if (sink_->batches().empty())
            return;
        const bool is_ordered = sink_->capabilities().ordered;
        const Batch& batch = *sink_->batches()[is_ordered ? 0 : below(sink_->batches().size())];
        const Positions positions = positions_of(batch);
        const bool poisoned = std::any_of(positions.begin(), positions.end(),
                                          [](std::int64_t position) { return position % 7 == 3; });
        const std::size_t dice = below(10);
        if (!is_ordered && below(4) == 0) {
            divide(positions, trouble);
        } else if (poisoned && dice < 7) {
            end(is_ordered ? everything_in_flight() : positions, false);
            sink_->fail(positions.front(), "poison", 0, Fate::refused, dice == 0);
        } else if (trouble && dice == 9) {
            end(is_ordered ? everything_in_flight() : positions, false);
            sink_->fail(positions.front(), "down", 0,
                        std::array{Fate::failed, Fate::unavailable, Fate::throttled}[below(3)]);
        } else {
            end(positions, true);
            sink_->confirm(positions.front());
        }
    }

    void divide(const Positions& positions, bool trouble) {
        std::vector<EventOutcome> of_events;
        for (std::int64_t position : positions) {
            Fate fate = Fate::confirmed;
            if (position % 7 == 3)
                fate = Fate::refused;
            else if (trouble && below(3) == 0)
                fate = std::array{Fate::failed, Fate::unavailable, Fate::throttled}[below(3)];
            of_events.push_back(
                {fate, "no", fate == Fate::refused && below(8) == 0,
                 std::array{Scope::lane, Scope::connection, Scope::destination}[below(3)]});
            end({position}, fate == Fate::confirmed);
        }
        sink_->divide(positions.front(), std::move(of_events));
    }

    Positions everything_in_flight() const {
        Positions all;
        for (const Positions& batch : sink_->in_flight())
            all.insert(all.end(), batch.begin(), batch.end());
        return all;
    }
    void end(const Positions& positions, bool delivered) {
        for (std::int64_t position : positions) {
            truth_.at(position).in_flight = false;
            truth_.at(position).delivered |= delivered;
        }
    }

    // Does to the table what record_events() does.
    void record() {
        pipeline_->gather_records();
        if (pipeline_->records().empty())
            return;
        std::set<std::string> keys;
        for (const Record& record : pipeline_->records()) {
            const std::int64_t position = record.event->position;
            Row& row = table_[position];
            row.key = truth_.at(position).key;
            keys.insert(row.key);
            if (record.kind != Kind::parked)
                row.locked = record.kind == Kind::moved;
            if (record.kind == Kind::released)
                row.failed = true;
            if (record.kind == Kind::confirmed) {
                table_.erase(position);
            } else if (record.kind == Kind::refused) {
                row.failed = true;
                row.dead = record.permanent || ++row.attempts >= 4;
                truth_.at(position).dead = row.dead;
            }
        }
        for (const std::string& key : keys)
            if (first_of(key) == nullptr)
                pipeline_->free_key(key);
        pipeline_->recorded();
        mark_blocked();
    }

    const std::pair<const std::int64_t, Row>* first_of(const std::string& key) const {
        for (const auto& row : table_)
            if (!key.empty() && row.second.key == key && (!row.second.dead || blocks_))
                return &row;
        return nullptr;
    }

    void mark_blocked() {
        if (!blocks_)
            return;
        for (auto& [position, event] : truth_) {
            const auto* first = first_of(event.key);
            event.behind_a_dead_one =
                first != nullptr && first->second.dead && first->first < position;
        }
    }

    // Does what claim_due() does: takes the first rows of keys, some with the rows behind them.
    void load() {
        std::vector<EventSpec> claimed;
        std::set<std::string> stopped;
        for (auto& [position, row] : table_) {
            const bool first = row.key.empty() || (first_of(row.key) != nullptr &&
                                                   first_of(row.key)->first == position);
            const bool follows = !row.key.empty() && !row.failed && !stopped.contains(row.key) &&
                                 claimed_key(claimed, row.key) && below(3) > 0;
            if (!row.locked && !row.dead && (first || follows) && claimed.size() < 20) {
                claimed.push_back({.position = position, .key = row.key, .topic = "R"});
                row.locked = true;
            } else {
                stopped.insert(row.key);
            }
        }
        if (claimed.empty())
            return;
        EventBlock* block = pipeline_->take_block();
        for (const EventSpec& spec : claimed)
            append(*block, spec);
        pipeline_->admit_retries(block);
    }

    static bool claimed_key(const std::vector<EventSpec>& claimed, const std::string& key) {
        return std::any_of(claimed.begin(), claimed.end(),
                           [&](const EventSpec& spec) { return spec.key == key; });
    }

    std::mt19937_64 random_;
    bool blocks_ = false;
    FakeClock clock_;
    DeliveryStats stats_;
    ScriptedSink* sink_ = nullptr;
    std::unique_ptr<Pipeline> pipeline_;
    std::map<std::int64_t, Truth> truth_;
    std::map<std::int64_t, Row> table_;
    std::int64_t last_ = 0;
};

TEST(PipelineTroubleProperties, NothingIsLostAndNoKeyOvertaken) {
    for (std::uint64_t seed = 1; seed <= many(300); seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        TroubledRun(seed).go();
        if (testing::Test::HasFailure())
            break;
    }
}

}  // namespace
}  // namespace outbox
