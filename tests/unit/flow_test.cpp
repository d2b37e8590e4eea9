// The objects that the pipeline asks, each alone: flow limit, circuit, lane health, chains of keys,
// ledger of windows, condition log.
#include <gtest/gtest.h>

#include <random>

#include "core/condition_log.hpp"
#include "core/health.hpp"
#include "core/key_chains.hpp"
#include "core/window_ledger.hpp"
#include "event_spec.hpp"

namespace outbox {
namespace {

// ---- FlowLimit

TEST(FlowLimit, RandomRefusalsDoNotLowerIt) {
    FlowLimit flow(16);
    std::mt19937_64 random(1);
    double least = 16;
    for (Micros i = 1; i <= 500'000; i++) {
        flow.answered(i * 20, 200, random() % 20 == 0);
        least = std::min(least, flow.limit());
    }
    EXPECT_GT(least, 12);
}

TEST(FlowLimit, ComesNearWhatAReceiverTakes) {
    // It takes one request every 500 µs, each in 100 µs, and 20 at once.
    FlowLimit flow(16);
    Micros now = 0;
    double room = 20;
    Micros filled_at = 0;
    int sent = 0, taken = 0;
    for (; now < seconds(20); now += 25) {
        if (now < flow.earliest())
            continue;
        flow.sent(now);
        room = std::min(20.0, room + static_cast<double>(now - filled_at) / 500);
        filled_at = now;
        const bool takes = room >= 1;
        room -= takes;
        sent++;
        taken += takes;
        flow.answered(now, 100, !takes);
    }
    EXPECT_GE(taken, 36'000) << "of 40,000";
    EXPECT_LE(sent - taken, taken / 10);
}

TEST(FlowLimit, GrowsAgainWhenAllIsTaken) {
    FlowLimit flow(8);
    Micros now = 0;
    for (int i = 0; i < 64; i++)
        flow.answered(now, 100, true);
    EXPECT_LT(flow.limit(), 1);
    EXPECT_EQ(flow.allowed(), 1u);
    for (; now < seconds(30); now += milliseconds(1))
        flow.answered(now, 100, false);
    EXPECT_DOUBLE_EQ(flow.limit(), 8);
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

TEST_F(KeyChainsTest, CountsWhatWaitsBehindASuspect) {
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

TEST_F(KeyChainsTest, WhatIsLeftOfABatchKeepsItsPlace) {
    for (std::size_t position : {1, 2, 3})
        chains.join(event(position));
    Event* travelled[] = {event(1).event, event(2).event};
    Tracked* left[] = {&event(2)};
    chains.keep(travelled, left);
    EXPECT_EQ(chains.release(event(2)), &event(3));
}

// ---- WindowLedger

TEST(WindowLedger, AWindowIsSettledWhenItIsClosedAndAllOfItIs) {
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

// ---- ConditionLog

TEST(ConditionLog, AConditionThatLastsHasOneLine) {
    ConditionLog log;
    EXPECT_FALSE(log.observe(0, Condition::Kind::failing, "HTTP 500: a"));
    EXPECT_EQ(log.deadline(), seconds(1));
    EXPECT_TRUE(log.observe(seconds(1), Condition::Kind::failing, "HTTP 500: a"));
    EXPECT_FALSE(log.observe(seconds(60), Condition::Kind::failing, "HTTP 500: a"));
    EXPECT_EQ(log.deadline(), never);
}

TEST(ConditionLog, WhatPassesAtOnceHasNone) {
    ConditionLog log;
    for (Micros now = 0; now < seconds(60); now += milliseconds(400)) {
        EXPECT_FALSE(log.observe(now, Condition::Kind::failing, "x"));
        EXPECT_FALSE(log.observe(now + milliseconds(100), Condition::Kind::works, ""));
    }
}

TEST(ConditionLog, AChangedReasonIsAChangeAndLinesAreApart) {
    ConditionLog log;
    log.observe(0, Condition::Kind::failing, "HTTP 500: down");
    EXPECT_TRUE(log.observe(seconds(1), Condition::Kind::failing, "HTTP 500: down"));
    EXPECT_FALSE(log.observe(seconds(2), Condition::Kind::failing, "HTTP 401: who"));
    EXPECT_EQ(log.deadline(), seconds(11));
    EXPECT_TRUE(log.observe(seconds(11), Condition::Kind::failing, "HTTP 401: who"));
}

TEST(ConditionLog, NumbersInAReasonAreNoChange) {
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
    EXPECT_LE(lines, 6);
    EXPECT_GE(lines, 5);
    EXPECT_GT(budget.left_out(), 100u);
}

}  // namespace
}  // namespace outbox
