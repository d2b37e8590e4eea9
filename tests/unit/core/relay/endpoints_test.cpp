// A relay whose sink has questions for the database: when they are asked, and the place in the log
// that goes with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "unit/core/relay/fake_home.hpp"

namespace outbox {
namespace {

using testing::Contains;
using testing::Not;

constexpr std::size_t max_events = 1000;

struct RelayEndpoints : testing::Test {
    FakeHome home{{}, {}, max_events, 1};

    RelayEndpoints() {
        home.serves_endpoints = true;
        home.start();
        home.relay->follow_operator(false);
    }

    EndpointsSink& sink() { return *home.endpoints; }

    void write(std::uint64_t xid, int rows) {
        for (int i = 0; i < rows; i++)
            home.log.write(xid, "", "t");
    }
    void end(std::uint64_t xid) {
        home.log.end(xid, true);
        home.committed = true;
    }
    std::uint64_t commit(int rows) {
        const std::uint64_t xid = home.log.begin();
        write(xid, rows);
        end(xid);
        return xid;
    }
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
    void confirm(std::size_t batches) {
        sink().confirms = batches;
        settle_down();
    }
    // Reads at most one block, and hands it over.
    void go_round() {
        while (home.turn() != Wish::wait) {
        }
    }
    void save() {
        home.clock.advance(home.save_interval);
        settle_down();
        ASSERT_EQ(home.saved.cursor.position, home.relay->cursor().position);
    }
    EndpointPlace place() {
        home.relay->question();
        home.relay->consult_failed();
        return sink().place;
    }
    // Positions that the place says are done.
    std::vector<std::int64_t> covered() {
        place();
        std::vector<std::int64_t> positions;
        for (const FakeLog::Row& row : home.log.rows())
            if (sink().covers(row.xid, row.position))
                positions.push_back(row.position);
        return positions;
    }
};

using Covered = std::vector<std::int64_t>;

TEST_F(RelayEndpoints, AQuestionIsAskedWhenItIsDue) {
    EXPECT_THAT(settle_down(), Not(Contains(Wish::consult)));
    sink().due_at = home.clock.now() + seconds(1);
    settle_down();
    EXPECT_EQ(home.relay->deadline(false), home.clock.now() + seconds(1));
    home.clock.advance(seconds(1));
    EXPECT_THAT(settle_down(), Contains(Wish::consult));
    EXPECT_FALSE(sink().under_way);
    EXPECT_EQ(sink().known, "answer 1");
}

TEST_F(RelayEndpoints, AQuestionWithoutEffectIsAskedAgain) {
    home.questions_fail = true;
    sink().due_at = 0;
    home.turn();
    while (home.questions == 0)
        home.turn();
    EXPECT_FALSE(sink().under_way);
    home.questions_fail = false;
    EXPECT_THAT(settle_down(), Contains(Wish::consult));
    EXPECT_EQ(sink().known, "answer 2");
}

TEST_F(RelayEndpoints, WhileAnOperatorHasTheLockNoQuestionIsAsked) {
    home.operator_has_lock = true;
    sink().due_at = 0;
    settle_down();
    EXPECT_EQ(home.questions, 0);
    EXPECT_FALSE(sink().under_way);
    EXPECT_EQ(home.relay->deadline(false), home.clock.now() + Relay::busy_pause);
    home.operator_has_lock = false;
    home.clock.advance(Relay::busy_pause);
    settle_down();
    EXPECT_EQ(home.questions, 1);
}

TEST_F(RelayEndpoints, TheSinkHearsOfOperatorsAndOfPauses) {
    const int looks = sink().looks;
    home.relay->follow_operator(true);
    EXPECT_EQ(sink().looks, looks + 1);
    EXPECT_TRUE(sink().is_paused);
    sink().due_at = 0;
    EXPECT_THAT(settle_down(), Contains(Wish::consult)) << "a paused sink still learns";
    home.relay->follow_operator(false);
    EXPECT_FALSE(sink().is_paused);
}

TEST_F(RelayEndpoints, ADestinationThatLeavesEndpointsOutFailsInPart) {
    EXPECT_EQ(home.relay->condition(), Condition::Kind::works);
    sink().leaves_out = "7 endpoints get nothing";
    EXPECT_EQ(home.relay->condition(), Condition::Kind::partly);
    EXPECT_EQ(home.relay->reason(), "7 endpoints get nothing");
    home.relay->line_is_due();
    EXPECT_NE(home.relay->failing_since(), 0);
    EXPECT_EQ(home.relay->next_attempt(), 0);
    sink().leaves_out.clear();
    EXPECT_EQ(home.relay->condition(), Condition::Kind::works);
}

TEST_F(RelayEndpoints, PollsLookAtTheEndpointsToo) {
    home.poll = seconds(10);
    home.start();
    settle_down();
    const int looks = sink().looks;
    for (int i = 0; i < 5; i++) {
        home.committed = true;
        settle_down();
    }
    EXPECT_EQ(sink().looks, looks) << "a look after a commit is none at the endpoints";
    home.clock.advance(seconds(10));
    settle_down();
    EXPECT_EQ(sink().looks, looks + 1);
}

TEST_F(RelayEndpoints, BeforeTheFirstEventThePlaceIsTheCursor) {
    commit(2);
    EXPECT_EQ(covered(), Covered{});
    settle_down();
    confirm(1);
    save();
    home.start();
    commit(1);
    EXPECT_EQ(covered(), (Covered{1, 2}));
    EXPECT_EQ(place().done, home.saved.cursor.done);
}

TEST_F(RelayEndpoints, ThePlaceIsTheLastEventThatTheSinkHas) {
    home.rows_in_block = 2;
    commit(5);
    go_round();
    EXPECT_EQ(sink().handed, (std::set<std::int64_t>{1, 2}));
    EXPECT_EQ(covered(), (Covered{1, 2}));
    EXPECT_NE(place().upto, std::nullopt);
    settle_down();
    EXPECT_EQ(covered(), (Covered{1, 2, 3, 4, 5}));
}

TEST_F(RelayEndpoints, ALowerPositionThatCommitsLaterIsNotCovered) {
    const std::uint64_t late = home.log.begin();
    write(late, 1);
    commit(2);
    settle_down();
    EXPECT_EQ(covered(), (Covered{2, 3}));
    end(late);
    EXPECT_EQ(covered(), (Covered{2, 3}));
    home.clock.advance(Relay::gather_time);
    settle_down();
    EXPECT_EQ(covered(), (Covered{1, 2, 3}));
}

// The window of the last event is settled, and the next window has events with lower positions.
TEST_F(RelayEndpoints, AWindowThatIsNotHandedOverIsNotCovered) {
    const std::uint64_t late = home.log.begin();
    write(late, 1);
    commit(2);
    settle_down();
    confirm(1);
    home.relay->follow_operator(true);
    end(late);
    home.relay->window_found(home.log.snapshot(), false);  // read before the pause
    home.relay->block();
    home.relay->block_read(false, 0);
    settle_down();
    EXPECT_EQ(covered(), (Covered{2, 3}));
}

TEST_F(RelayEndpoints, SeveralWindowsMayBeOpen) {
    for (int i = 0; i < 4; i++) {
        commit(2);
        settle_down();
        home.clock.advance(milliseconds(10));
    }
    EXPECT_EQ(covered().size(), 8u);
    confirm(2);
    EXPECT_EQ(covered().size(), 8u);
    EXPECT_TRUE(place().upto) << "the last window is not settled";
    confirm(2);
    EXPECT_EQ(covered().size(), 8u);
    EXPECT_FALSE(place().upto) << "all are settled";
}

TEST_F(RelayEndpoints, ARestartInAWindowGoesOnFromThere) {
    const std::uint64_t late = home.log.begin();
    write(late, 1);
    commit(5);
    settle_down();
    confirm(2);  // positions 2 to 4 of the window
    save();
    home.start();
    home.rows_in_block = 1;
    EXPECT_EQ(covered(), (Covered{2, 3, 4}));
    end(late);  // below the saved position
    go_round();
    EXPECT_EQ(sink().handed, (std::set<std::int64_t>{1}));
    EXPECT_EQ(covered(), (Covered{2, 3, 4})) << "of these two parts only one can be said";
    settle_down();
    EXPECT_EQ(sink().handed, (std::set<std::int64_t>{1, 5, 6}));
    EXPECT_EQ(covered(), (Covered{1, 2, 3, 4, 5, 6}));
}

TEST_F(RelayEndpoints, ACursorOfAnotherClusterCoversWhatWasSettledThere) {
    commit(3);
    home.saved.cursor.done = home.log.snapshot();
    home.saved.cursor.position = 2;
    home.saved.cursor.foreign = true;
    home.start();
    EXPECT_EQ(covered(), (Covered{1, 2})) << "position 3 was renumbered";
    EXPECT_EQ(place().done, Snapshot{});
    settle_down();
    EXPECT_EQ(sink().handed, (std::set<std::int64_t>{3}));
    EXPECT_EQ(covered(), (Covered{1, 2, 3}));
    confirm(1);
    EXPECT_EQ(covered(), (Covered{1, 2, 3}));
    EXPECT_FALSE(place().upto);
}

// Nothing that the sink has not had is ever covered, so nothing is lost. What it has had is covered,
// but for few events after a restart.
TEST(RelayEndpointsProperty, ThePlaceCoversWhatTheSinkHasHad) {
    for (std::uint64_t seed = 1; seed <= 100; seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937_64 random(seed);
        const auto one_in = [&](unsigned n) { return random() % n == 0; };
        FakeHome home({}, {}, max_events, seed);
        home.serves_endpoints = true;
        home.start();
        Saved at_start = home.saved;
        std::vector<std::uint64_t> open;
        for (int step = 0; step < 400; step++) {
            if (one_in(4))
                open.push_back(home.log.begin());
            if (!open.empty() && one_in(2))
                home.log.write(open[random() % open.size()], "", "t");
            if (!open.empty() && one_in(5)) {
                const std::size_t i = random() % open.size();
                home.log.end(open[i], !one_in(5));
                open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
                home.committed = true;
            }
            if (one_in(5))
                home.clock.advance(milliseconds(random() % 100));
            home.endpoints->confirms = one_in(3) ? random() % 3 : 0;
            home.rows_in_block = 1 + random() % 3;
            home.turn();
            if (one_in(60)) {
                home.start();
                at_start = home.saved;
            }
            home.relay->question();
            home.relay->consult_failed();
            for (const FakeLog::Row& row : home.log.rows()) {
                const bool handed = home.endpoints->handed.contains(row.position);
                const bool settled = at_start.has_passed(row);
                const bool covered = home.endpoints->covers(row.xid, row.position);
                if (row.rolled_back || home.log.running().contains(row.xid))
                    continue;
                ASSERT_TRUE(!covered || handed || settled) << "position " << row.position;
                ASSERT_TRUE(covered || !handed || row.position <= at_start.cursor.position)
                    << "position " << row.position;
            }
        }
    }
}

}  // namespace
}  // namespace outbox
