// The relay in virtual time, at a simulated home: a log with transactions, the row of
// outbox.cursor, the table outbox.delivery, operators, and crashes of the relay and of the server.
#include "core/relay/relay.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <set>

#include "unit/core/relay/fake_home.hpp"
#include "unit/many.hpp"

namespace outbox {
namespace {

using testing::IsEmpty;

// ---------------------------------------------------------------------------------------------
// Single behaviours
// ---------------------------------------------------------------------------------------------

constexpr Capabilities single_events{.max_batches = 8};

struct RelayTest : testing::Test {
    FakeHome home{single_events, {}, 100, 1};

    void commit(const std::vector<std::string>& keys) {
        const std::uint64_t xid = home.log.begin();
        for (const std::string& key : keys)
            home.log.write(xid, key, "t");
        home.log.end(xid, true);
        home.committed = true;
    }
    // Runs until the relay only waits. Returns the tasks that it did.
    std::vector<Wish> settle_down() {
        std::vector<Wish> wishes;
        Wish wish{};
        do {
            wish = home.turn();
            if (wish != Wish::wait)
                wishes.push_back(wish);
        } while (wish != Wish::wait || home.relay->deadline(home.committed) <= home.clock.now());
        return wishes;
    }
};

TEST_F(RelayTest, AnEventIsReadSentAndSavedLater) {
    settle_down();  // the log is empty
    commit({"a"});
    home.clock.advance(milliseconds(200));
    EXPECT_EQ(settle_down(), (std::vector{Wish::read}));
    EXPECT_EQ(home.sink->in_flight(), (std::vector<Positions>{{1}}));
    home.sink->confirm(1);
    EXPECT_EQ(settle_down(), (std::vector{Wish::save}));
    EXPECT_TRUE(home.saved.has_passed(home.log.rows()[0]));
    commit({"a"});
    settle_down();
    home.sink->confirm(2);
    EXPECT_THAT(settle_down(), IsEmpty()) << "it has just been saved";
    EXPECT_EQ(home.relay->deadline(false), home.clock.now() + milliseconds(100));
    home.clock.advance(milliseconds(100));
    EXPECT_EQ(settle_down(), (std::vector{Wish::save}));
}

TEST_F(RelayTest, CountersGoOnInTheNextRelay) {
    commit({"a", "b"});
    settle_down();
    EXPECT_FALSE(home.relay->must_save_to_leave());
    home.sink->confirm(1);
    home.sink->confirm(2);
    EXPECT_EQ(settle_down(), (std::vector{Wish::save}));
    EXPECT_FALSE(home.relay->must_save_to_leave()) << "they were saved with the cursor";

    home.stats.reset();  // as in a new process
    home.start();
    EXPECT_EQ(home.stats.all_delivered(), 2u);
    EXPECT_FALSE(home.relay->must_save_to_leave());
    commit({"c"});
    settle_down();
    home.sink->fail(3);
    EXPECT_THAT(settle_down(), testing::Not(testing::Contains(Wish::save)))
        << "a failure alone writes nothing";
    EXPECT_EQ(home.stats.all_failures(), 1u);
    EXPECT_TRUE(home.relay->must_save_to_leave());
}

TEST_F(RelayTest, AnOutageGoesOnInTheNextRelay) {
    commit({"a"});
    settle_down();
    home.sink->fail(1);
    settle_down();
    home.relay->line_is_due();
    const Micros since = home.relay->failing_since();
    EXPECT_EQ(since, home.clock.unix_now());
    EXPECT_EQ(home.saved.cursor.failing_since, 0) << "it is young";
    home.clock.advance(Relay::long_outage);
    home.relay->line_is_due();
    EXPECT_THAT(settle_down(), testing::Contains(Wish::save)) << "it lasts";
    EXPECT_EQ(home.saved.cursor.failing_since, since);
    home.clock.advance(Relay::long_outage);
    home.relay->line_is_due();
    EXPECT_THAT(settle_down(), testing::Not(testing::Contains(Wish::save))) << "once is enough";

    home.stats.reset();  // as in a new process
    home.start();
    home.relay->line_is_due();
    EXPECT_EQ(home.relay->failing_since(), 0) << "this relay does not know yet";
    EXPECT_EQ(home.relay->outage_to_save(), since);
    settle_down();
    home.sink->fail(1);
    settle_down();
    home.relay->line_is_due();
    EXPECT_EQ(home.relay->failing_since(), since);
    home.clock.advance(seconds(10));
    home.relay->line_is_due();
    settle_down();
    home.sink->confirm(1);
    settle_down();
    home.relay->line_is_due();
    EXPECT_EQ(home.relay->failing_since(), 0);
    home.clock.advance(Relay::long_outage);
    home.relay->line_is_due();
    settle_down();
    EXPECT_EQ(home.saved.cursor.failing_since, 0);
}

TEST_F(RelayTest, AnEarlierOutageEndsWhenEventsArrive) {
    home.saved.cursor.failing_since = 1;
    home.restart();
    commit({"a"});
    settle_down();
    home.sink->confirm(1);
    settle_down();
    home.relay->line_is_due();
    EXPECT_EQ(home.relay->outage_to_save(), 1) << "a part of the destination may still fail";
    home.clock.advance(Relay::long_outage);
    home.relay->line_is_due();
    EXPECT_EQ(home.relay->outage_to_save(), 0);
    EXPECT_TRUE(home.relay->must_save_to_leave());
}

TEST_F(RelayTest, TheAgeOfEventsBeforeASeekIsNoLatency) {
    home.saved.cursor.live_after = 1;
    home.restart();
    commit({"a", "b"});
    settle_down();
    home.sink->confirm(1);
    home.sink->confirm(2);
    settle_down();
    EXPECT_EQ(home.stats.delivered, 2u);
    EXPECT_EQ(home.stats.latencies.figures().up_to.back(), 1u);
}

TEST_F(RelayTest, ATransactionInProgressDelaysItsOwnEventsOnly) {
    const std::uint64_t slow = home.log.begin();
    home.log.write(slow, "slow", "t");
    commit({"fast"});
    settle_down();
    EXPECT_EQ(home.sink->in_flight(), (std::vector<Positions>{{2}}));
    home.log.end(slow, true);
    home.committed = true;
    settle_down();
    EXPECT_EQ(home.sink->in_flight(), (std::vector<Positions>{{2}, {1}}));
}

TEST_F(RelayTest, SeveralCommitsAreGathered) {
    commit({"a", "b"});
    settle_down();
    commit({"c"});
    EXPECT_EQ(home.relay->deadline(home.committed), home.clock.now() + Relay::gather_time);
    EXPECT_THAT(settle_down(), IsEmpty());
    home.clock.advance(Relay::gather_time);
    EXPECT_EQ(settle_down().front(), Wish::read);
}

TEST_F(RelayTest, ARestartInAWindowGoesOnWhereItWasSaved) {
    commit({"a", "b", "c", "d", "e"});
    settle_down();
    home.sink->confirm(1);
    home.sink->confirm(2);
    home.clock.advance(milliseconds(100));
    settle_down();
    home.start();
    home.committed = true;
    settle_down();
    EXPECT_EQ(home.sink->in_flight(), (std::vector<Positions>{{3}, {4}, {5}}));
}

TEST_F(RelayTest, WhileReadingIsUnderWayOtherTasksGoOn) {
    settle_down();
    commit({"a"});
    settle_down();
    home.sink->confirm(1);
    commit({"b"});
    home.clock.advance(seconds(1));
    Wish wish{};
    while ((wish = home.relay->next(true)) != Wish::read) {
    }
    home.relay->reading();
    std::vector<Wish> wishes;
    while ((wish = home.relay->next(true)) != Wish::wait) {
        wishes.push_back(wish);
        if (wish == Wish::save)
            home.relay->saved();
    }
    EXPECT_EQ(wishes, (std::vector{Wish::save}));
    home.relay->next(true);
    EXPECT_GT(home.relay->deadline(true), home.clock.now()) << "nobody asks for another look";
    home.relay->reading_failed(milliseconds(10));
    EXPECT_EQ(home.relay->deadline(true), home.clock.now() + milliseconds(10));
    home.clock.advance(milliseconds(10));
    EXPECT_EQ(settle_down().front(), Wish::read);
    EXPECT_EQ(home.sink->in_flight(), (std::vector<Positions>{{2}}));
}

// Nothing else would trigger it: there is no room to look for more, and nothing is in flight.
TEST_F(RelayTest, WhatIsReadBesideAnotherTaskIsSent) {
    settle_down();
    commit({"a"});
    settle_down();
    home.sink->confirm(1);
    home.clock.advance(seconds(1));
    ASSERT_EQ(home.relay->next(true), Wish::read);
    home.relay->reading();
    ASSERT_EQ(home.relay->next(false), Wish::save);

    home.relay->window_found(home.log.snapshot(), true);
    for (std::int64_t position = 2; position <= 101; position++)
        append(home.relay->block(), {.position = position});
    home.relay->block_read(true, 101);
    ASSERT_FALSE(home.relay->pipeline().has_room());
    home.relay->saved();
    settle_down();
    EXPECT_THAT(home.sink->in_flight(), testing::SizeIs(single_events.max_batches));
}

TEST_F(RelayTest, AHomeThatStandsByLooksAfterACommitOnly) {
    settle_down();
    home.relay->stand_by();
    EXPECT_EQ(home.relay->deadline(false), never);
    home.clock.advance(seconds(3600));
    EXPECT_THAT(settle_down(), IsEmpty());
    commit({"a"});
    EXPECT_EQ(settle_down().front(), Wish::read);
}

TEST_F(RelayTest, WhileAnOperatorHasTheLockNothingIsWrittenAndDeliveryGoesOn) {
    settle_down();
    home.operator_has_lock = true;
    commit({"a"});
    settle_down();
    home.sink->confirm(1);
    EXPECT_EQ(settle_down(), (std::vector{Wish::save})) << "it is tried";
    EXPECT_FALSE(home.saved.has_passed(home.log.rows()[0]));
    EXPECT_EQ(home.relay->deadline(false), home.clock.now() + Relay::busy_pause);
    commit({"b"});
    settle_down();
    EXPECT_EQ(home.sink->in_flight(), (std::vector<Positions>{{2}}));
    home.operator_has_lock = false;
    home.clock.advance(Relay::busy_pause);
    settle_down();
    EXPECT_TRUE(home.saved.has_passed(home.log.rows()[0]));
}

TEST_F(RelayTest, ADestinationThatIsGoneIsPausedAndKeepsItsEvents) {
    commit({"a", "b"});
    settle_down();
    home.operator_has_lock = true;
    home.sink->be_gone(1);
    home.sink->fail(2, "another error");
    settle_down();
    EXPECT_FALSE(home.paused);
    EXPECT_TRUE(home.relay->pipeline().paused()) << "nothing is sent before that is known";
    commit({"c"});
    home.clock.advance(seconds(60));
    settle_down();
    EXPECT_THAT(home.sink->in_flight(), IsEmpty());

    home.operator_has_lock = false;
    home.clock.advance(Relay::busy_pause);
    EXPECT_THAT(settle_down(), testing::Contains(Wish::pause));
    EXPECT_TRUE(home.paused);
    EXPECT_EQ(home.why, "gone");
    home.clock.advance(seconds(60));
    EXPECT_THAT(settle_down(), testing::Not(testing::Contains(Wish::pause))) << "once is enough";
    EXPECT_THAT(home.sink->in_flight(), IsEmpty());
    EXPECT_THAT(home.saved.table.rows(), IsEmpty());

    home.sink->confirm_at_once();
    home.relay->follow_operator(home.paused = false);
    settle_down();
    home.clock.advance(seconds(60));
    settle_down();
    EXPECT_EQ(home.stats.all_delivered(), 3u);
    EXPECT_THAT(home.saved.table.rows(), IsEmpty());
}

TEST_F(RelayTest, TroubleIsRecordedAtOnceAndThenAfterAPause) {
    commit({"a", "b"});
    settle_down();
    home.sink->fail(1, "no", 0, Fate::refused);
    EXPECT_EQ(settle_down().front(), Wish::record);
    home.sink->fail(2, "no", 0, Fate::refused);
    EXPECT_THAT(settle_down(), IsEmpty());
    home.clock.advance(Relay::trouble_pause);
    EXPECT_EQ(settle_down().front(), Wish::record);
    EXPECT_EQ(home.saved.table.rows().size(), 2u);
}

// A request that hangs leaves for outbox.delivery before what a crash would repeat becomes too
// much, and the log goes on to be read: eight requests of 2 ms at a time, 10,000 events in 2.5 s.
TEST(RelayUnderLoad, RequestsThatHangDoNotStopTheLog) {
    std::multimap<Micros, std::int64_t> answers;
    FakeHome home{{.max_batches = 8, .more_batches = 24}, {}, 100, 1};
    home.on_submit = [&](const Batch& batch) {
        const std::int64_t position = batch.events.front()->position;
        const Micros takes = position % 500 == 0 ? seconds(5) : milliseconds(2);
        answers.emplace(home.clock.now() + takes, position);
    };
    home.rows_in_block = 50;
    home.start();
    const std::uint64_t xid = home.log.begin();
    for (int i = 0; i < 10'000; i++)
        home.log.write(xid, "key " + std::to_string(i), "t");
    home.log.end(xid, true);
    home.committed = true;

    const Micros begin = home.clock.now();
    while (home.stats.delivered < 9980 && home.clock.now() < begin + seconds(30)) {
        if (home.turn() != Wish::wait)
            continue;
        const Micros answered = answers.empty() ? never : answers.begin()->first;
        home.clock.advance_to(std::min(answered, home.relay->deadline(home.committed)));
        for (; !answers.empty() && answers.begin()->first <= home.clock.now();
             answers.erase(answers.begin()))
            home.sink->confirm(answers.begin()->second);
    }
    EXPECT_LT(home.clock.now() - begin, milliseconds(3500))
        << home.stats.delivered << " delivered, " << home.saved.table.rows().size() << " rows";
}

// It takes 6 s to park the events of the key that is held, which are in front of all others.
TEST(RelayUnderLoad, OtherKeysPassALongLineOfAHeldKey) {
    constexpr int in_line = 30'000, others = 1000;
    FakeHome home{{.max_batches = 8}, {}, 10'000, 1};
    home.rows_in_block = EventBlock::max_events;
    home.time_per_record = 200;
    std::vector<std::int64_t> sent;
    home.on_submit = [&](const Batch& batch) { sent.push_back(batch.events.front()->position); };
    home.start();
    const auto commit = [&](const std::string& key, int count) {
        const std::uint64_t xid = home.log.begin();
        for (int i = 0; i < count; i++)
            home.log.write(xid, count == others ? key + std::to_string(i) : key, "t");
        home.log.end(xid, true);
        home.committed = true;
    };
    commit("held", 1);
    while (sent.empty())
        home.turn();
    sent.clear();
    home.sink->fail(1, "no", 0, Fate::refused);
    while (home.saved.table.rows().empty())
        home.turn();

    commit("held", in_line);
    commit("other", others);
    const Micros begin = home.clock.now();
    const auto run = [&](const auto& reached) {
        while (!reached() && home.clock.now() < begin + seconds(60)) {
            const bool waits = home.turn() == Wish::wait;
            for (const std::int64_t position : std::exchange(sent, {}))
                position > 1 + in_line ? home.sink->confirm(position)
                                       : home.sink->fail(position, "no", 0, Fate::refused);
            if (waits)
                home.clock.advance_to(home.relay->deadline(home.committed));
        }
    };
    run([&] { return home.stats.delivered == others; });
    EXPECT_EQ(home.stats.delivered, static_cast<std::uint64_t>(others));
    EXPECT_LT(home.clock.now() - begin, seconds(1));
    const std::int64_t saved = home.relay->cursor().position;
    EXPECT_LE(saved, 1 + in_line) << "the log waits for what is not parked";

    run([&] { return home.relay->pipeline().idle(); });
    EXPECT_EQ(home.saved.table.rows().size(), 1u + in_line);
    EXPECT_EQ(home.relay->pipeline().held_keys(), 1u);
}

TEST_F(RelayTest, AStoppedRelayForgetsWhatItWasReading) {
    commit({"a", "b", "c", "d", "e"});
    EXPECT_EQ(home.turn(), Wish::read);
    ASSERT_TRUE(home.relay->in_window());
    home.relay->block();  // the block is given back
    home.relay->stop();
    EXPECT_FALSE(home.relay->started());
    EXPECT_FALSE(home.relay->in_window());
}

// ---------------------------------------------------------------------------------------------
// Random runs
// ---------------------------------------------------------------------------------------------

// Checks four promises. An event of a committed transaction arrives, unless it is refused for good.
// It never arrives before earlier events of its key have arrived. It never arrives if its
// transaction rolled back. It does not arrive again once the saved cursor has passed it, unless an
// operator moves the cursor.
class RandomRun {
  public:
    explicit RandomRun(std::uint64_t seed)
        : random_(seed),
          ordered_(below(4) == 0),
          blocks_(below(3) == 0),
          home_(capabilities(), {.blocks = blocks_}, 20 + below(200), seed) {
        home_.on_submit = [this](const Batch& batch) { check(batch); };
        home_.rows_in_block = 1 + below(8);
        home_.poll = seconds(1);
        home_.save_interval = milliseconds(static_cast<std::int64_t>(below(300)));
        home_.start();
    }

    void go() {
        for (int turn = 0; turn < 500 && !testing::Test::HasFailure(); turn++) {
            act();
            let_it_run();
        }
        calm_down();
        for (int turn = 0; turn < 30'000 && !done() && !testing::Test::HasFailure(); turn++)
            let_it_run();
        EXPECT_TRUE(done()) << home_.saved.table.rows().size() << " rows, "
                            << home_.relay->pipeline().unsettled() << " unsettled";
        for (const FakeLog::Row& row : home_.log.rows())
            EXPECT_TRUE(row.rolled_back || is_finished(row))
                << "event " << row.position << " is lost";
    }

  private:
    std::size_t below(std::size_t n) { return random_() % n; }

    Capabilities capabilities() {
        Capabilities result{
            .max_batch_events = 1 + below(4), .max_batches = 1 + below(6), .ordered = ordered_};
        if (!ordered_) {
            result.keys =
                std::array{KeyPolicy::mixed, KeyPolicy::one_each, KeyPolicy::alone}[below(3)];
            result.lanes = below(2) == 0;
        }
        return result;
    }

    // One random action of sessions, operators or the destination.
    void act() {
        switch (below(14)) {
            case 0:
            case 1:
            case 2:
            case 3:
                produce();
                break;
            case 4:
            case 5:
                finish_some_transaction();
                break;
            case 6:
                home_.operator_has_lock = !home_.operator_has_lock;
                break;
            case 7:
                if (below(4) == 0)
                    pause(!home_.paused);
                break;
            case 8:
                if (below(4) == 0)
                    crash(false);
                break;
            case 9:
                if (below(6) == 0)
                    crash(true);
                break;
            case 10:
                if (below(10) == 0)
                    seek();
                break;
            default:
                home_.clock.advance(milliseconds(static_cast<std::int64_t>(below(200))));
        }
    }
    void calm_down() {
        while (!home_.log.running().empty())
            home_.log.end(*home_.log.running().begin(), true);
        home_.operator_has_lock = false;
        pause(false);
        home_.committed = true;
        trouble_ = false;
    }

    void let_it_run() {
        const Wish wish = home_.turn();
        if (!home_.sink->batches().empty() && below(2) == 0)
            answer();
        else if (wish == Wish::wait)
            wait();
    }
    void wait() {
        const Micros due = home_.relay->deadline(home_.committed);
        if (due != never)
            home_.clock.advance_to(due);
        if (!trouble_)
            home_.committed = true;  // the slow poll finds commits that were not announced
    }

    void produce() {
        const auto& running = home_.log.running();
        const std::uint64_t xid = running.empty() || (running.size() < 4 && below(2) == 0)
                                      ? home_.log.begin()
                                      : *std::next(running.begin(), below(running.size()));
        for (std::size_t n = 1 + below(4); n > 0; n--) {
            const std::string key = below(6) == 0 ? "" : std::string(1, char('a' + below(4)));
            if (home_.log.write(xid, key, key.empty() ? "t" : key) && below(10) == 0)
                home_.log.roll_back_last(xid);
        }
    }
    void finish_some_transaction() {
        const auto& running = home_.log.running();
        if (running.empty())
            return;
        home_.log.end(*std::next(running.begin(), below(running.size())), below(5) != 0);
        home_.committed = true;
    }
    void pause(bool paused) {
        home_.paused = paused;
        home_.relay->follow_operator(paused);
    }
    // The relay ends, and with it everything in flight, some of which has arrived. A crash of the
    // server also loses the last transactions that were not flushed.
    void crash(bool server) {
        for (const Batch* batch : std::vector(home_.sink->batches()))
            if (below(2) == 0 && !ordered_)
                arrived(positions_of(*batch));
        if (server)
            home_.saved = home_.flushed;
        home_.start();
    }
    void seek() {
        home_.saved.cursor = {};
        home_.flushed = home_.saved;  // commits of operators wait for the disk
        home_.cursor_moved = true;
    }

    // Checks a batch that is sent.
    void check(const Batch& batch) {
        for (const Event* event : batch.events) {
            const FakeLog::Row& row = row_at(event->position);
            EXPECT_FALSE(row.rolled_back) << "event " << row.position << " was rolled back";
            EXPECT_FALSE(home_.log.running().contains(row.xid)) << "event " << row.position;
            const bool has_row = home_.saved.table.rows().contains(row.position);
            EXPECT_TRUE(has_row || !home_.saved.has_passed(row))
                << "event " << row.position << " was settled and saved";
            EXPECT_EQ(event->retry, has_row || moves(*event)) << "event " << row.position;
            expect_order(row, batch);
        }
    }
    // True if the event is about to get a row: its request hung, and has ended while an operator
    // had the lock.
    bool moves(const Event& event) const {
        const std::vector<Record>& records = home_.relay->pipeline().records();
        return std::any_of(records.begin(), records.end(), [&](const Record& record) {
            return record.event == &event && record.kind == Record::Kind::moved;
        });
    }
    // Earlier events of the key must have arrived, be dead letters, or be in front in the batch. If
    // the sink keeps the order, they may also be in an earlier batch.
    void expect_order(const FakeLog::Row& row, const Batch& batch) {
        for (const FakeLog::Row& earlier : home_.log.rows()) {
            if (earlier.position >= row.position || earlier.rolled_back || row.key.empty() ||
                earlier.key != row.key || is_finished(earlier))
                continue;
            const Positions own = positions_of(batch);
            const bool before = std::find(own.begin(), own.end(), earlier.position) != own.end() ||
                                (ordered_ && is_in_flight(earlier.position));
            EXPECT_TRUE(before) << "event " << row.position << " overtakes " << earlier.position
                                << (home_.saved.table.rows().contains(earlier.position)
                                        ? ", in the table"
                                        : "")
                                << (is_in_flight(earlier.position) ? ", in flight" : "");
        }
    }

    // A random answer of the destination.
    void answer() {
        const Batch& batch =
            *home_.sink->batches()[ordered_ ? 0 : below(home_.sink->batches().size())];
        const Positions positions = positions_of(batch);
        const bool poison = std::any_of(positions.begin(), positions.end(),
                                        [](std::int64_t position) { return position % 11 == 5; });
        if (poison) {
            home_.sink->fail(positions.front(), "poison", 0, Fate::refused, below(4) == 0);
        } else if (trouble_ && below(5) == 0) {
            if (!ordered_ && below(3) == 0)
                arrived(positions);  // but the answer was lost
            home_.sink->fail(
                positions.front(), "down", 0,
                std::array{Fate::failed, Fate::unavailable, Fate::throttled}[below(3)]);
        } else {
            arrived(positions);
            home_.sink->confirm(positions.front());
        }
    }
    void arrived(const Positions& positions) {
        for (std::int64_t position : positions)
            if (position % 11 != 5)
                arrived_.insert(position);
    }

    bool is_in_flight(std::int64_t position) const {
        for (const Positions& batch : home_.sink->in_flight())
            if (std::find(batch.begin(), batch.end(), position) != batch.end())
                return true;
        return false;
    }
    // True if the row needs no further work.
    bool is_finished(const FakeLog::Row& row) const {
        if (arrived_.contains(row.position))
            return true;
        const auto& rows = home_.saved.table.rows();
        const auto found = rows.find(row.position);
        if (found != rows.end() && found->second.dead)
            return row.position % 11 == 5;
        const std::optional<std::int64_t> first = home_.saved.table.first_of(row.key);
        return blocks_ && first && rows.at(*first).dead && *first < row.position;
    }
    bool done() const {
        const auto& rows = home_.saved.table.rows();
        return home_.relay->pipeline().idle() && !home_.relay->has_records() &&
               std::all_of(home_.log.rows().begin(), home_.log.rows().end(),
                           [&](const FakeLog::Row& row) {
                               return row.rolled_back || home_.saved.has_passed(row);
                           }) &&
               std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
                   return is_finished(row_at(row.first)) &&
                          (row.second.dead || !row.second.due || blocks_);
               });
    }
    const FakeLog::Row& row_at(std::int64_t position) const {
        return home_.log.rows().at(static_cast<std::size_t>(position - 1));
    }

    std::mt19937_64 random_;
    bool ordered_;
    bool blocks_;
    FakeHome home_;
    std::set<std::int64_t> arrived_;  // at least once
    bool trouble_ = true;
};

TEST(RelayProperties, ThePromisesOfTheDrillsHoldWithEachSeed) {
    for (std::uint64_t seed = 1; seed <= many(1000); seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        RandomRun(seed).go();
        if (testing::Test::HasFailure())
            break;
    }
}

}  // namespace
}  // namespace outbox
