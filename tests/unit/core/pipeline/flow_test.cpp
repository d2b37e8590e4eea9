// The parts of the pipeline, each alone: flow limit, circuit, lane health, chains of keys, ledger
// of windows, condition log.
#include <gtest/gtest.h>

#include <random>

#include "core/pipeline/health.hpp"
#include "core/pipeline/key_chains.hpp"
#include "core/pipeline/window_ledger.hpp"
#include "core/relay/condition_log.hpp"
#include "unit/event_spec.hpp"

namespace outbox {
namespace {

// ---- FlowLimit

struct Receiver {
    double a_second;
    double at_once;
    double room = at_once;
    Micros filled_at = 0;
    int sent = 0, taken = 0;

    bool takes(Micros now) {
        room = std::min(at_once, room + static_cast<double>(now - filled_at) * a_second / 1e6);
        filled_at = now;
        sent++;
        if (room < 1)
            return false;
        room--;
        taken++;
        return true;
    }
};

// Requests take `duration(now)`. All that are allowed are sent.
template <class Duration>
void drive(FlowLimit& flow, Receiver& receiver, Micros from, Micros to, Duration duration) {
    for (Micros now = from; now < to; now += 25) {
        if (now < flow.earliest())
            continue;
        flow.sent(now);
        flow.answered(now, duration(now), !receiver.takes(now));
    }
}

TEST(FlowLimit, ComesNearTheRateThatAReceiverAccepts) {
    for (const double at_once : {5.0, 20.0, 200.0}) {
        FlowLimit flow;
        Receiver receiver{.a_second = 2'000, .at_once = at_once};
        drive(flow, receiver, 0, seconds(20), [](Micros) { return 100; });
        EXPECT_GE(receiver.taken, 38'000) << "of 40,000, " << at_once << " at once";
        EXPECT_LE(receiver.sent - receiver.taken, receiver.sent / 16) << at_once << " at once";
    }
}

TEST(FlowLimit, DoesNotDependOnTheDurationOfRequests) {
    FlowLimit flow;
    Receiver receiver{.a_second = 2'000, .at_once = 20};
    drive(flow, receiver, 0, seconds(20),
          [](Micros now) { return now / seconds(2) % 2 == 0 ? 100 : 10'000; });
    EXPECT_GE(receiver.taken, 38'000) << "of 40,000";
}

TEST(FlowLimit, RefusalsAtRandomDoNotStopALane) {
    for (const unsigned percent : {1, 5, 10, 20, 40}) {
        FlowLimit flow;
        std::mt19937_64 random(percent);
        int sent = 0;
        for (Micros now = 0; now < seconds(30); now += 25) {
            if (now < flow.earliest())
                continue;
            flow.sent(now);
            flow.answered(now, 100, random() % 100 < percent);
            sent++;
        }
        EXPECT_GT(sent, percent <= 5 ? 1'150'000 : 1'000'000)
            << "of 1,200,000, " << percent << " %";
    }
}

TEST(FlowLimit, FollowsAReceiverThatAcceptsLessAndThenMore) {
    FlowLimit flow;
    Receiver receiver{.a_second = 2'000, .at_once = 20};
    const auto duration = [](Micros) { return 100; };
    drive(flow, receiver, 0, seconds(5), duration);
    receiver.a_second = 50;
    receiver.room = 0;
    drive(flow, receiver, seconds(5), seconds(10), duration);
    EXPECT_LT(flow.limit(), 100);
    receiver.a_second = 1e6;
    drive(flow, receiver, seconds(10), seconds(40), duration);
    EXPECT_FALSE(flow.is_lowered() && flow.limit() < 10'000) << flow.limit();
}

TEST(FlowLimit, ALaneThatWorksAgainStartsWithAPartAndIsNotThrottled) {
    FlowLimit flow;
    flow.answered(0, 1000, false);
    flow.start_again(0, 4);
    EXPECT_DOUBLE_EQ(flow.limit(), 4000);
    EXPECT_FALSE(flow.is_throttled());
    for (Micros now = 0; now < seconds(10); now += 25)
        if (now >= flow.earliest()) {
            flow.sent(now);
            flow.answered(now, 1000, false);
        }
    EXPECT_FALSE(flow.is_lowered() && flow.limit() < 30'000) << flow.limit();
    flow.start_again(seconds(10), 4);
    for (int i = 0; i < 64; i++)
        flow.answered(seconds(11), 1000, true);
    EXPECT_TRUE(flow.is_throttled());
}

TEST(FlowLimit, EndsWhenItNoLongerLimits) {
    FlowLimit flow;
    for (int i = 0; i < 64; i++)
        flow.answered(0, 100, true);
    EXPECT_TRUE(flow.is_lowered());
    // Ten requests per second, and all are accepted.
    for (Micros now = seconds(1); now < seconds(60); now += milliseconds(100))
        flow.answered(now, 100, false);
    EXPECT_FALSE(flow.is_lowered());
}

// ---- Circuit, LaneHealth

TEST(Circuit, IsProbedOnceAfterABackOff) {
    Circuit circuit(milliseconds(100), seconds(1), 1);
    circuit.sent();
    circuit.failed(0, 0);
    EXPECT_TRUE(circuit.is_down());
    EXPECT_FALSE(circuit.may_send(0));
    const Micros due = circuit.resume_at();
    EXPECT_LE(due, milliseconds(100));
    EXPECT_TRUE(circuit.may_send(due));
    circuit.sent();
    EXPECT_TRUE(circuit.is_probed());
    EXPECT_FALSE(circuit.may_send(due)) << "one at a time";
    circuit.ended(circuit.period());
    circuit.works();
    EXPECT_TRUE(circuit.may_send(due));
}

TEST(Circuit, ObeysRetryAfter) {
    Circuit circuit(milliseconds(100), seconds(1), 1);
    circuit.failed(0, seconds(60));
    EXPECT_GE(circuit.resume_at(), seconds(60));
}

TEST(LaneHealth, IsDownAfterSeveralFailuresInARow) {
    LaneHealth health(8, milliseconds(100), seconds(1), 1);
    for (int i = 0; i < 3; i++)
        EXPECT_FALSE(health.failed());
    health.confirmed();
    for (int i = 0; i < 3; i++)
        EXPECT_FALSE(health.failed());
    EXPECT_TRUE(health.failed());
}

// ---- KeyChains

class KeyChainsTest : public testing::Test {
  protected:
    KeyChainsTest() {
        for (std::int64_t position = 1; position <= 4; position++)
            append(block, {.position = position, .key = position == 4 ? "b" : "a"});
        block.track();
    }
    Tracked& event(std::size_t position) { return block.tracked()[position - 1]; }

    TrackedBlock block;
    KeyChains chains;
};

TEST_F(KeyChainsTest, TheFirstOfAKeyHasTheTurnAndPassesItOn) {
    EXPECT_TRUE(chains.join(event(1)));
    EXPECT_FALSE(chains.join(event(2)));
    EXPECT_TRUE(chains.join(event(4)));
    EXPECT_EQ(chains.last_of("a"), &event(2));
    EXPECT_EQ(chains.release(event(1)), &event(2));
    EXPECT_EQ(chains.release(event(2)), nullptr);
    EXPECT_EQ(chains.last_of("a"), nullptr);
}

TEST_F(KeyChainsTest, CountsTheEventsBehindASuspect) {
    chains.join(event(1));
    chains.join(event(2));
    chains.set_suspect(event(1), true);
    EXPECT_EQ(chains.held_back(), 2u);
    chains.join(event(3));
    EXPECT_EQ(chains.held_back(), 3u);
    EXPECT_EQ(chains.cut_behind(event(1), event(1)), &event(2));
    EXPECT_EQ(chains.held_back(), 1u);
    EXPECT_EQ(chains.release(event(1)), nullptr);
    EXPECT_EQ(chains.held_back(), 0u);
}

TEST_F(KeyChainsTest, TheRestOfABatchKeepsItsPlace) {
    for (std::size_t position : {1, 2, 3})
        chains.join(event(position));
    Event* travelled[] = {event(1).event, event(2).event};
    Tracked* left[] = {&event(2)};
    chains.keep(travelled, left);
    EXPECT_EQ(chains.release(event(2)), &event(3));
}

// ---- WindowLedger

TEST(WindowLedger, AWindowIsSettledWhenItIsClosedAndAllItsEventsAre) {
    TrackedBlock block;
    append(block, {.position = 5});
    append(block, {.position = 7});
    block.track();
    WindowLedger ledger;
    ledger.open();
    ledger.add(block);
    EXPECT_EQ(ledger.span(), 2u);
    EXPECT_EQ(ledger.first_unsettled()->event->position, 5);
    ledger.settle(block.tracked()[0]);
    ledger.advance();
    EXPECT_EQ(ledger.front_position(), 5);
    ledger.settle(block.tracked()[1]);
    ledger.advance();
    EXPECT_EQ(ledger.take_settled(), 0u);
    ledger.close(9);
    EXPECT_EQ(ledger.take_settled(), 1u);
    EXPECT_EQ(ledger.highest_settled(), 9);
    EXPECT_TRUE(ledger.empty());
}

TEST(WindowLedger, AnEventOfTheLineKeepsTheLogButNotItsBlock) {
    TrackedBlock first, second;
    append(first, {.position = 5});
    append(first, {.position = 7});
    append(second, {.position = 8});
    const std::string key = "a";
    WindowLedger ledger;
    ledger.open();
    first.track();
    ledger.add(first);
    ledger.settle(first.tracked()[0]);
    ledger.park(first.tracked()[1], key);
    second.track();
    ledger.add(second);
    ledger.settle(second.tracked()[0]);
    ledger.close(9);
    EXPECT_EQ(ledger.first_block(), nullptr);
    EXPECT_EQ(ledger.front_position(), 6);
    EXPECT_EQ(ledger.whole_span(), 3u);
    EXPECT_EQ(ledger.take_settled(), 0u);
    ledger.leave_line(1);
    ledger.advance();
    EXPECT_EQ(ledger.take_settled(), 1u);
    EXPECT_EQ(ledger.highest_settled(), 9);
}

TEST(WindowLedger, NothingIsSettledIfTheFirstEventOfTheWindowIsInTheLine) {
    TrackedBlock block;
    append(block, {.position = 5});
    append(block, {.position = 7});
    block.track();
    const std::string key = "a";
    WindowLedger ledger;
    ledger.open();
    ledger.add(block);
    ledger.park(block.tracked()[0], key);
    ledger.settle(block.tracked()[1]);
    ledger.advance();
    EXPECT_EQ(ledger.front_position(), std::nullopt);
}

// ---- ConditionLog

TEST(ConditionLog, AConditionThatLastsHasOneLine) {
    ConditionLog log;
    EXPECT_FALSE(log.observe(0, Condition::Kind::failing, "HTTP 500: a"));
    EXPECT_EQ(log.deadline(), seconds(1));
    EXPECT_TRUE(log.observe(seconds(1), Condition::Kind::failing, "HTTP 500: a"));
    EXPECT_FALSE(log.observe(seconds(60), Condition::Kind::failing, "HTTP 500: a"));
    EXPECT_EQ(log.deadline(), never);
}

TEST(ConditionLog, AConditionThatPassesAtOnceHasNoLine) {
    ConditionLog log;
    for (Micros now = 0; now < seconds(60); now += milliseconds(400)) {
        EXPECT_FALSE(log.observe(now, Condition::Kind::failing, "x"));
        EXPECT_FALSE(log.observe(now + milliseconds(100), Condition::Kind::works, ""));
    }
}

TEST(ConditionLog, AChangedReasonHasALineAndLinesAreSpacedOut) {
    ConditionLog log;
    log.observe(0, Condition::Kind::failing, "HTTP 500: down");
    EXPECT_TRUE(log.observe(seconds(1), Condition::Kind::failing, "HTTP 500: down"));
    EXPECT_FALSE(log.observe(seconds(2), Condition::Kind::failing, "HTTP 401: who"));
    EXPECT_EQ(log.deadline(), seconds(11));
    EXPECT_TRUE(log.observe(seconds(11), Condition::Kind::failing, "HTTP 401: who"));
}

TEST(ConditionLog, OtherNumbersInAReasonAreNotAChange) {
    ConditionLog log;
    log.observe(0, Condition::Kind::failing, "HTTP 500: request 17 failed");
    EXPECT_TRUE(log.observe(seconds(1), Condition::Kind::failing, "HTTP 500: request 18 failed"));
    EXPECT_FALSE(log.observe(seconds(30), Condition::Kind::failing, "HTTP 500: request 19 failed"));
}

TEST(LineBudget, AFewLinesAtOnceThenOneInAWhile) {
    LineBudget budget;
    int lines = 0;
    for (Micros now = 0; now < seconds(60); now += milliseconds(10))
        lines += budget.take(now);
    EXPECT_LE(lines, 4);
    EXPECT_GE(lines, 3);
    EXPECT_GT(budget.left_out(), 100u);
}

}  // namespace
}  // namespace outbox
