// The redis sink against a small Redis that a test can make say anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "core/check.hpp"
#include "unit/drive.hpp"
#include "unit/failing_new.hpp"
#include "unit/sample_event.hpp"
#include "unit/sinks/redis/scripted_redis.hpp"

extern "C" outbox::Check* OUTBOX_CREATE_CHECK(const outbox::CheckContext& context) noexcept;

namespace outbox {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string stream = "video.events";

class RedisSink : public DrivenSink {
  protected:
    void create(std::vector<Option> options = {}, std::vector<Option> mapping = {},
                const std::string& allowed_hosts = "127.0.0.1") {
        for (Option& fallback : std::vector<Option>{{"url", redis_.url()}})
            if (std::none_of(options.begin(), options.end(),
                             [&](const Option& one) { return one.name == fallback.name; }))
                options.push_back(fallback);
        make(options, mapping, allowed_hosts);
    }

    // An event of this position, whose id has it as well.
    Event& event(std::int64_t position, const std::string& key = "") {
        Event& event = samples_.emplace_back().event;
        event.position = position;
        event.event_id = uuid(position);
        event.ordering_key = texts_.emplace_back(key);
        return event;
    }

    static Uuid uuid(std::int64_t position) {
        Uuid id{};
        for (int i = 0; i < 8; i++)
            id[static_cast<std::size_t>(15 - i)] = static_cast<std::uint8_t>(position >> (8 * i));
        return id;
    }
    static std::string text_of(std::int64_t position) {
        std::string text;
        append_uuid(text, uuid(position));
        return text;
    }

    Batch& batch(const std::vector<std::int64_t>& positions) {
        Batch& batch = batches_.emplace_back();
        for (const std::int64_t position : positions)
            batch.events.push_back(&event(position));
        return batch;
    }

    Outcome send_positions(const std::vector<std::int64_t>& positions) {
        return send(batch(positions));
    }

    void expect_confirmed(const std::vector<std::int64_t>& positions) {
        const Outcome outcome = send_positions(positions);
        EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
        EXPECT_TRUE(outcome.of_events.empty());
    }

    // Answers to the commands of this name, `times` times.
    void answer(const std::string& name, const std::string& bytes, int times = 1,
                bool close = false) {
        redis_.on([=, left = times](const Command& command) mutable -> std::optional<Answer> {
            if (command.front() != name || left-- <= 0)
                return std::nullopt;
            return Answer{bytes, close, false};
        });
    }

    std::vector<Finding> check(const std::vector<std::string>& streams) {
        std::unique_ptr<Check> check(OUTBOX_CREATE_CHECK({destination_, clock_, streams}));
        std::vector<Finding> findings;
        const Micros give_up = clock_.now() + patience;
        while (clock_.now() < give_up && !check->step(clock_.now(), findings)) {
            pollfd watched{check->descriptor(), POLLIN, 0};
            if (check->deadline() > clock_.now())
                poll(&watched, 1, 10);
        }
        return findings;
    }

    ScriptedRedis redis_;
    std::deque<SampleEvent> samples_;
    std::deque<std::string> texts_;
    std::deque<Batch> batches_;
};

// ---- ids ------------------------------------------------------------------------------------------

TEST_F(RedisSink, MakesIdsOfPositions) {
    create();
    expect_confirmed({3, 5, 4});
    expect_confirmed({9});
    EXPECT_THAT(redis_.ids(stream), ElementsAre("3-0", "4-0", "5-0", "9-0"));
    EXPECT_EQ(redis_.count("XINFO"), 1u);
    EXPECT_EQ(redis_.count("XREVRANGE"), 0u);
}

TEST_F(RedisSink, AnEventThatComesLateIsAdded) {
    create();
    expect_confirmed({5, 9});
    expect_confirmed({4, 7});
    expect_confirmed({10});
    EXPECT_THAT(redis_.ids(stream), ElementsAre("5-0", "9-0", "9-4", "9-7", "10-0"));
    EXPECT_EQ(redis_.count("XREVRANGE"), 0u) << "this connection knows what it has sent";
}

TEST_F(RedisSink, ARepeatedEventIsNotAddedTwice) {
    create({{"receipts", "on"}});
    expect_confirmed({5, 9});
    expect_confirmed({4});
    create({{"receipts", "on"}});  // a relay that starts again
    const Outcome outcome = send_positions({5, 9, 4, 11, 7});
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_THAT(redis_.ids(stream), ElementsAre("5-0", "9-0", "9-4", "9-7", "11-0"));
    EXPECT_THAT(outcome.message_ids, ElementsAre("5-0", "9-0", "9-4", "11-0", "9-7"));
}

// In any order, with many entries behind, and in pages.
TEST_F(RedisSink, RepetitionsAreFoundAmongManyEntries) {
    create();
    std::vector<std::int64_t> positions;
    for (std::int64_t position = 3000; position > 0; position--)
        positions.push_back(position);
    for (std::size_t at = 0; at < positions.size(); at += 100)
        expect_confirmed({positions.begin() + static_cast<std::ptrdiff_t>(at),
                          positions.begin() + static_cast<std::ptrdiff_t>(at) + 100});
    EXPECT_EQ(redis_.count("XREVRANGE"), 0u);
    create();
    expect_confirmed({2990, 5, 1500, 4000, 2});
    expect_confirmed({2991, 4001, 1});
    EXPECT_EQ(redis_.ids(stream).size(), 3002u);
    EXPECT_LT(redis_.count("XREVRANGE"), 10u);
}

TEST_F(RedisSink, EntriesThatCannotHaveTheEventAreNotRead) {
    create();
    for (std::int64_t position = 1; position <= 100; position++)
        expect_confirmed({position});
    create();
    expect_confirmed({101});
    EXPECT_EQ(redis_.count("XREVRANGE"), 0u);
    expect_confirmed({100});
    EXPECT_EQ(redis_.count("XREVRANGE"), 1u);
    EXPECT_EQ(redis_.ids(stream).size(), 101u);
}

TEST_F(RedisSink, AnEntryOfAnotherEventDoesNotConfirmThisOne) {
    redis_.add(stream, {5, 0}, text_of(1000));
    create();
    expect_confirmed({5});
    EXPECT_THAT(redis_.ids(stream), ElementsAre("5-0", "5-5"));
}

TEST_F(RedisSink, AnEventThatIsReplayedArrivesAgain) {
    create();
    expect_confirmed({5});
    create();
    Batch& again = batch({5});
    again.events[0]->replayed = true;
    EXPECT_EQ(send(again).fate, Fate::confirmed);
    EXPECT_THAT(redis_.ids(stream), ElementsAre("5-0", "5-5"));
}

TEST_F(RedisSink, AStreamWithIdsOfAClockNeedsNoQuestions) {
    redis_.add(stream, {1'600'000'000'000, 0}, "of another producer");
    create();
    expect_confirmed({5, 6});
    create();
    expect_confirmed({6, 7});
    EXPECT_THAT(redis_.ids(stream), ElementsAre("1600000000000-0", "1600000000000-5",
                                                "1600000000000-6", "1600000000000-7"));
    EXPECT_LE(redis_.count("XREVRANGE"), 2u) << "only what is ours";
}

TEST_F(RedisSink, WhatAnotherRelayHasAddedMeanwhileIsFound) {
    create();
    expect_confirmed({5});
    redis_.add(stream, {6, 0}, text_of(6));
    redis_.add(stream, {7, 0}, text_of(7));
    expect_confirmed({6, 7, 8});
    EXPECT_THAT(redis_.ids(stream), ElementsAre("5-0", "6-0", "7-0", "8-0"));
}

TEST_F(RedisSink, RedisMakesTheIdsWhereSomethingElseWrites) {
    create();
    expect_confirmed({5});
    redis_.add(stream, {1'700'000'000'000, 0}, "of another producer");
    expect_confirmed({6, 7});
    expect_confirmed({8});
    EXPECT_THAT(redis_.ids(stream), ElementsAre("5-0", "1700000000000-0", "1700000000000-1",
                                                "1700000000000-2", "1700000000000-3"));
    SinkReport report;
    EXPECT_FALSE(sink_->report(report));
    EXPECT_THAT(report.lines, ElementsAre(HasSubstr(stream)));
    EXPECT_FALSE(sink_->report(report));
    EXPECT_TRUE(report.lines.empty());
}

TEST_F(RedisSink, RedisMakesAllIdsIfAskedTo) {
    create({{"ids", "auto"}, {"receipts", "on"}});
    const Outcome outcome = send_positions({5, 4});
    EXPECT_THAT(outcome.message_ids, ElementsAre("1700000000000-1", "1700000000000-0"));
    EXPECT_EQ(redis_.count("XINFO"), 0u);
    EXPECT_EQ(redis_.count("XREVRANGE"), 0u);
}

// Batches that were sent while the sink did not know what became of others.
TEST_F(RedisSink, ManyBatchesKeepTheirIdsRising) {
    create();
    std::vector<std::int64_t> positions(400);
    for (std::size_t i = 0; i < positions.size(); i++)
        positions[i] = static_cast<std::int64_t>(1 + i * 7 % 401);
    std::set<Batch*> in_flight;
    std::size_t next = 0;
    const Micros give_up = clock_.now() + patience;
    while ((next < positions.size() || !in_flight.empty()) && clock_.now() < give_up) {
        while (in_flight.size() < sink_->capabilities().max_batches && next < positions.size()) {
            Batch& some = batch(
                {positions[next], positions[next + 1], positions[next + 2], positions[next + 3]});
            next += 4;
            in_flight.insert(&some);
            sink_->submit(some);
        }
        std::vector<Outcome> ended;
        step_once(ended);
        for (const Outcome& outcome : ended) {
            EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
            in_flight.erase(outcome.batch);
        }
    }
    EXPECT_EQ(redis_.ids(stream).size(), positions.size());
    EXPECT_EQ(redis_.count("XREVRANGE"), 0u);
}

TEST_F(RedisSink, AKeyWhoseOrderIsNotThatOfPositionsKeepsIt) {
    create();
    Batch& sent = batches_.emplace_back();
    for (const std::int64_t position : {8, 3, 9})
        sent.events.push_back(&event(position, "k"));
    EXPECT_EQ(send(sent).fate, Fate::confirmed);
    EXPECT_THAT(redis_.ids(stream), ElementsAre("8-0", "8-3", "9-0"));
}

// ---- entries --------------------------------------------------------------------------------------

TEST_F(RedisSink, AnEntryHasTheColumnsOfTheEvent) {
    create({{"max_length", "1000"}});
    Batch& sent = batch({7});
    sent.events[0]->payload = texts_.emplace_back(std::string("\0\r\n$5", 6));
    sent.events[0]->ordering_key = "k";
    EXPECT_EQ(send(sent).fate, Fate::confirmed);
    const auto fields = redis_.entries(stream).at(0);
    EXPECT_EQ(fields[0], "event_id");
    EXPECT_EQ(fields[1], text_of(7));
    EXPECT_EQ(fields[fields.size() - 4], "ordering_key");
    EXPECT_EQ(fields[fields.size() - 2], "payload");
    EXPECT_EQ(fields.back(), texts_.back());
    const std::vector<Command> commands = redis_.commands();
    const auto added = std::find_if(commands.begin(), commands.end(),
                                    [](const Command& one) { return one.front() == "XADD"; });
    ASSERT_NE(added, commands.end());
    EXPECT_THAT(Command(added->begin(), added->begin() + 6),
                ElementsAre("XADD", stream, "MAXLEN", "~", "1000", "7-0"));
}

TEST_F(RedisSink, AHeaderTakesNoNameOfAField) {
    for (const char* format : {"attributes", "binary", "structured"}) {
        const std::string name = std::string("s-") + format;
        create({{"format", format}, {"stream", name}});
        Batch& sent = batch({1});
        const Header headers[] = {{"payload", "x"},  {"ordering_key", "x"}, {"event_id", "x"},
                                  {"data", "x"},     {"ce_id", "x"},        {"content-type", "x"},
                                  {"my-header", "y"}};
        sent.events[0]->headers = headers;
        EXPECT_EQ(send(sent).fate, Fate::confirmed);
        std::map<std::string, std::string> found;
        const auto fields = redis_.entries(name).at(0);
        for (std::size_t i = 0; i < fields.size(); i += 2)
            EXPECT_TRUE(found.emplace(fields[i], fields[i + 1]).second) << fields[i] << " twice";
        EXPECT_EQ(found["my-header"], "y");
        EXPECT_EQ(found[format == std::string("attributes") ? "event_id" : "ce_id"], text_of(1));
    }
}

// ---- answers --------------------------------------------------------------------------------------

TEST_F(RedisSink, NothingOfARefusedTransactionIsTaken) {
    create();
    const std::map<std::string, Fate> fates{{"-OOM command not allowed", Fate::throttled},
                                            {"-READONLY You can't write", Fate::unavailable},
                                            {"-NOREPLICAS Not enough", Fate::unavailable},
                                            {"-LOADING wait", Fate::unavailable},
                                            {"-CLUSTERDOWN The cluster is down", Fate::unavailable},
                                            {"-WRONGTYPE no stream", Fate::unavailable},
                                            {"-ERR something new", Fate::failed}};
    std::int64_t position = 1;
    for (const auto& [error, fate] : fates) {
        for (const char* name : {"XADD", "EXEC", "XINFO"}) {
            if (name == std::string("XINFO"))
                create();
            answer(name, error + "\r\n");
            const Outcome outcome = send_positions({position, position + 1});
            EXPECT_EQ(outcome.fate, fate) << error << " to " << name;
            EXPECT_THAT(outcome.error, HasSubstr(error.substr(1)));
            EXPECT_TRUE(outcome.of_events.empty());
            EXPECT_FALSE(outcome.permanent);
        }
        EXPECT_TRUE(redis_.ids(stream).empty()) << error;
    }
    expect_confirmed({1, 2});
    EXPECT_EQ(redis_.ids(stream).size(), 2u);
}

// Without it Redis executes each XADD at once.
TEST_F(RedisSink, AServerThatRefusesTransactionsGetsNoEventTwice) {
    create();
    answer("MULTI", "-NOPERM this user has no permissions to run the 'multi' command\r\n", 1000);
    const Outcome outcome = send_positions({1, 2});
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("'multi'"));
    expect_confirmed({1, 2});
    EXPECT_THAT(redis_.ids(stream), ElementsAre("1-0", "2-0"));
}

// Redis does not read what follows. So it may reset the connection while the sink is still sending.
TEST_F(RedisSink, OfAnArgumentThatIsTooLongOnlyItsEventIsRefused) {
    texts_.emplace_back(8 * 1024 * 1024, 'x');
    const std::string& more_than_buffers_hold = texts_.back();
    for (const bool reset : {false, true}) {
        create();
        expect_confirmed({1});
        redis_.on([=](const Command& command) -> std::optional<Answer> {
            if (command.front() == "XADD" && command[2] == "3-0")
                return Answer{"-ERR Protocol error: invalid bulk length\r\n", true, false, reset};
            return std::nullopt;
        });
        Batch& sent = batch({2, 3, 4});
        sent.events[2]->payload = more_than_buffers_hold;
        sink_->submit(sent);
        sink_->submit(batch({5}));
        const std::vector<Outcome> ended = outcomes(2);
        ASSERT_EQ(ended[0].of_events.size(), 3u) << ended[0].error;
        EXPECT_EQ(ended[0].of_events[0].fate, Fate::undone);
        EXPECT_EQ(ended[0].of_events[1].fate, Fate::refused);
        EXPECT_TRUE(ended[0].of_events[1].permanent);
        EXPECT_EQ(ended[0].of_events[2].fate, Fate::undone);
        EXPECT_EQ(ended[1].fate, Fate::undone);
        EXPECT_THAT(redis_.ids(stream), ElementsAre("1-0"));
    }
}

TEST_F(RedisSink, AConnectionThatIsLostLeavesTheOutcomeUnknown) {
    create();
    expect_confirmed({1});
    answer("EXEC", "", 1, true);
    EXPECT_EQ(send_positions({2}).fate, Fate::failed);
    answer("XINFO", "", 1, true);
    EXPECT_EQ(send_positions({2}).fate, Fate::unavailable) << "nothing was sent";
    expect_confirmed({2});
    EXPECT_THAT(redis_.ids(stream), ElementsAre("1-0", "2-0"));
}

TEST_F(RedisSink, AnAnswerThatDoesNotComeIsAFailure) {
    std::int64_t position = 0;
    for (const char* name : {"XINFO", "MULTI", "EXEC"}) {
        create({{"request_timeout", "100ms"}});
        redis_.on([=](const Command& command) -> std::optional<Answer> {
            if (command.front() != name)
                return std::nullopt;
            return Answer{"", false, true};
        });
        const Outcome outcome = send_positions({++position});
        EXPECT_EQ(outcome.fate, name == std::string("XINFO") ? Fate::unavailable : Fate::failed);
        EXPECT_THAT(outcome.error, HasSubstr("request_timeout"));
    }
}

// ---- servers --------------------------------------------------------------------------------------

TEST_F(RedisSink, LogsIn) {
    create({{"url", redis_.url() + "/3"}}, {{"user", "alice"}, {"password", "s3cret"}});
    expect_confirmed({1});
    const std::vector<Command> commands = redis_.commands();
    EXPECT_THAT(commands.at(0), ElementsAre("AUTH", "alice", "s3cret"));
    EXPECT_THAT(commands.at(1), ElementsAre("SELECT", "3"));
}

TEST_F(RedisSink, AFailedLoginFailsTheDestination) {
    create({}, {{"password", "s3cret"}});
    answer("AUTH", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    Outcome outcome = send_positions({1});
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::destination);
    EXPECT_THAT(outcome.error, HasSubstr("WRONGPASS"));
    answer("AUTH", "-ERR max number of clients reached\r\n", 1, true);
    outcome = send_positions({1});
    EXPECT_EQ(outcome.scope, Scope::connection);
    expect_confirmed({1});
    EXPECT_THAT(redis_.commands().at(0), ElementsAre("AUTH", "s3cret"));
}

TEST_F(RedisSink, FollowsAClusterToTheServerOfAStream) {
    ScriptedRedis other;
    create({{"stream", "{event_type}"}});
    redis_.on([&](const Command& command) -> std::optional<Answer> {
        if (command.front() == "XINFO" && command[2] != "here")
            return Answer{"-MOVED 1 " + other.address() + "\r\n"};
        return std::nullopt;
    });
    Batch &here = batch({1}), &there = batch({2});
    here.events[0]->event_type = "here";
    there.events[0]->event_type = "there";
    EXPECT_EQ(send(here).fate, Fate::confirmed);
    EXPECT_EQ(send(there).fate, Fate::confirmed);
    EXPECT_THAT(redis_.ids("here"), ElementsAre("1-0"));
    EXPECT_THAT(other.ids("there"), ElementsAre("2-0"));
    // The stream moves while events flow.
    other.on([&](const Command& command) -> std::optional<Answer> {
        if (command.front() == "XADD")
            return Answer{"-MOVED 1 " + redis_.address() + "\r\n"};
        return std::nullopt;
    });
    redis_.on({});
    Batch& moved = batch({3});
    moved.events[0]->event_type = "there";
    EXPECT_EQ(send(moved).fate, Fate::confirmed);
    EXPECT_THAT(redis_.ids("there"), ElementsAre("3-0"));
}

TEST_F(RedisSink, AsksTheServerThatImportsASlot) {
    for (const bool by_position : {true, false}) {
        ScriptedRedis other;
        create({{"ids", by_position ? "position" : "auto"}});
        redis_.on([&](const Command& command) -> std::optional<Answer> {
            if (command.front() == "XINFO" || command.front() == "XADD")
                return Answer{"-ASK 1 " + other.address() + "\r\n"};
            return std::nullopt;
        });
        expect_confirmed({1});
        expect_confirmed({2});
        const std::vector<Command> commands = other.commands();
        for (std::size_t i = 0; i < commands.size(); i++)
            if (commands[i].front() == "MULTI" || commands[i].front() == "XINFO") {
                ASSERT_GT(i, 0u);
                EXPECT_EQ(commands[i - 1].front(), "ASKING");
            }
        EXPECT_EQ(other.ids(stream).size(), 2u);
    }
}

TEST_F(RedisSink, DoesNotFollowInCircles) {
    create();
    ScriptedRedis other;
    other.on([&](const Command& command) -> std::optional<Answer> {
        if (command.front() == "XINFO")
            return Answer{"-MOVED 1 " + redis_.address() + "\r\n"};
        return std::nullopt;
    });
    answer("XINFO", "-MOVED 1 " + other.address() + "\r\n", 1000);
    const Outcome outcome = send_positions({1});
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.error, HasSubstr("MOVED"));
    EXPECT_LT(redis_.count("XINFO"), 10u);
}

TEST_F(RedisSink, FollowsOnlyToAllowedHosts) {
    create();
    answer("XINFO", "-MOVED 1 127.0.0.2:1\r\n", 1000);
    const Outcome outcome = send_positions({1});
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.error, HasSubstr("allowed_hosts"));
}

TEST_F(RedisSink, TriesTheNextHostWhenOneIsAReplica) {
    ScriptedRedis primary;
    create({{"url", redis_.url() + "," + primary.address()}});
    answer("XADD", "-READONLY You can't write against a read only replica.\r\n", 1000);
    EXPECT_EQ(send_positions({1}).fate, Fate::unavailable);
    expect_confirmed({1});
    EXPECT_THAT(primary.ids(stream), ElementsAre("1-0"));
}

TEST_F(RedisSink, AsksSentinelForThePrimary) {
    ScriptedRedis sentinel;
    std::string named = redis_.port();
    std::mutex mutex;
    sentinel.on([&](const Command& command) -> std::optional<Answer> {
        if (command.front() != "SENTINEL")
            return std::nullopt;
        const std::lock_guard lock(mutex);
        if (command[2] != "mymaster")
            return Answer{"*-1\r\n"};
        return Answer{"*2\r\n$9\r\n127.0.0.1\r\n$" + std::to_string(named.size()) + "\r\n" + named +
                      "\r\n"};
    });
    create({{"url", sentinel.url()}, {"sentinel", "mymaster"}}, {{"password", "s3cret"}});
    expect_confirmed({1});
    EXPECT_EQ(sentinel.count("AUTH"), 0u) << "the Sentinels have credentials of their own";
    ScriptedRedis promoted;
    {
        const std::lock_guard lock(mutex);
        named = promoted.port();
    }
    answer("XADD", "-READONLY You can't write against a read only replica.\r\n", 1000);
    EXPECT_EQ(send_positions({2}).fate, Fate::unavailable);
    expect_confirmed({2});
    EXPECT_THAT(promoted.ids(stream), ElementsAre("2-0"));
    create({{"url", sentinel.url()}, {"sentinel", "nobody"}});
    const Outcome outcome = send_positions({3});
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::destination);
    EXPECT_THAT(outcome.error, HasSubstr("nobody"));
}

TEST_F(RedisSink, ConfirmsWhatEnoughReplicasHave) {
    create({{"min_replicas", "2"}});
    answer("WAIT", ":1\r\n");
    const Outcome outcome = send_positions({1, 2});
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("1 of 2 replicas"));
    answer("WAIT", ":2\r\n", 1000);
    expect_confirmed({1, 2});
    EXPECT_THAT(redis_.ids(stream), ElementsAre("1-0", "2-0")) << "they were there";
    expect_confirmed({3});
    EXPECT_EQ(redis_.count("XSETID"), 1u) << "WAIT counts what this connection has written";
    answer("WAIT", "-ERR unknown command\r\n");
    EXPECT_EQ(send_positions({4}).fate, Fate::unavailable);
}

// ---- hostile peers --------------------------------------------------------------------------------

// Whatever it answers, and wherever it stops: a failure, and events are not confirmed.
TEST_F(RedisSink, SurvivesAnyAnswer) {
    const std::string answers[] = {"HTTP/1.1 400 Bad Request\r\n\r\n",
                                   "*1000000000\r\n",
                                   "$1000000000000\r\n",
                                   std::string(1 << 20, 'x'),
                                   std::string(1 << 16, '\n'),
                                   "*-5\r\n",
                                   "*0\r\n",
                                   "$-1\r\n",
                                   ":1\r\n",
                                   "+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
                                   "-MOVED\r\n",
                                   "-MOVED 1 :::1\r\n",
                                   "-MOVED 1 -.-:1\r\n",
                                   "-MOVED 1 a/b?c@d:1\r\n",
                                   "-MOVED 1 a:b:1\r\n",
                                   "-\r\n",
                                   ""};
    std::int64_t position = 0;
    redis_.add(stream, {1'000'000, 0}, "x");
    for (const char* name : {"XINFO", "XREVRANGE", "MULTI", "XADD", "EXEC"})
        for (const std::string& bytes : answers)
            for (const bool close : {true, false}) {
                if (!close && bytes.empty())
                    continue;
                create({{"request_timeout", "50ms"}});
                answer(name, bytes, 1000, close);
                const Outcome outcome = send_positions({++position});
                if (name == std::string("XREVRANGE") && bytes == "*0\r\n")
                    continue;  // which is true
                if (name == std::string("MULTI") || name == std::string("XADD"))
                    continue;  // an answer to these that is not an error says nothing
                EXPECT_NE(outcome.fate, Fate::confirmed) << name << ' ' << bytes.substr(0, 60);
                EXPECT_NE(outcome.fate, Fate::refused) << name << ' ' << bytes.substr(0, 60);
            }
}

TEST_F(RedisSink, AnAnswerWithoutACommandEndsTheConnection) {
    create();
    answer("EXEC", "*1\r\n$3\r\n1-0\r\n+more\r\n");
    EXPECT_EQ(send_positions({1}).fate, Fate::confirmed);
    const Outcome outcome = send_positions({2});
    EXPECT_NE(outcome.fate, Fate::refused);
}

TEST_F(RedisSink, APeerThatNeverStopsSendingCostsNoMemory) {
    create({{"request_timeout", "300ms"}});
    answer("XINFO", "*1000000000\r\n" + std::string(64 << 20, '\0'));
    EXPECT_EQ(send_positions({1}).fate, Fate::unavailable);
    std::string elements = "*1000000000\r\n";
    for (int i = 0; i < 2'000'000; i++)
        elements += "+1234567890\r\n";
    answer("XINFO", elements);
    EXPECT_EQ(send_positions({1}).fate, Fate::unavailable);
}

// No exception but bad_alloc, and nothing is taken for granted.
TEST_F(RedisSink, NoMemory) {
    Batch& sent = batch({1, 2});
    std::size_t failures = 0;
    const Outcome outcome = send_without_memory(
        sent, [&] { create(); }, allocations_until_failure,
        [&] {
            const bool failed = allocation_failed();
            failures += failed;
            return failed;
        });
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_GT(failures, 10u);
    EXPECT_EQ(redis_.ids(stream).size(), 2u);
}

// ---- the check ------------------------------------------------------------------------------------

std::string findings_text(const std::vector<Finding>& findings) {
    std::string text;
    for (const Finding& finding : findings)
        text += finding.subject + (finding.ok ? " ok: " : " BAD: ") + finding.detail + '\n';
    return text;
}

TEST_F(RedisSink, TheCheckLooksAtServerAndStreams) {
    redis_.add("there", {1, 0}, "x");
    create({}, {{"password", "s3cret"}});
    const std::string info =
        "redis_version:7.0.15\r\nrole:master\r\nconnected_slaves:1\r\naof_enabled:0\r\n"
        "maxmemory_policy:allkeys-lru\r\n";
    answer("INFO", '$' + std::to_string(info.size()) + "\r\n" + info + "\r\n");
    const std::string text = findings_text(check({"there", "new"}));
    EXPECT_THAT(text, HasSubstr("login ok: as the default user"));
    EXPECT_THAT(text, HasSubstr("role ok: a primary with 1 replicas"));
    EXPECT_THAT(text, HasSubstr("durability ok: appendonly is off"));
    EXPECT_THAT(text, HasSubstr("memory ok: maxmemory_policy is allkeys-lru"));
    EXPECT_THAT(text, HasSubstr("stream \"there\" ok: it exists, with 1 entries"));
    EXPECT_THAT(text, HasSubstr("stream \"new\" ok: it does not exist"));
    EXPECT_EQ(redis_.count("XADD"), 0u);
}

TEST_F(RedisSink, TheCheckSaysWhatIsWrong) {
    create({}, {{"password", "s3cret"}});
    answer("AUTH", "-WRONGPASS invalid\r\n");
    EXPECT_THAT(findings_text(check({})), HasSubstr("login BAD: login: WRONGPASS"));
    answer("INFO", "$10\r\nrole:slave\r\n", 1);
    EXPECT_THAT(findings_text(check({})), HasSubstr("role BAD: a replica"));
    answer("XINFO", "-WRONGTYPE Operation against a key\r\n");
    EXPECT_THAT(findings_text(check({"s"})), HasSubstr("stream \"s\" BAD: WRONGTYPE"));
    answer("INFO", "", 1, true);
    EXPECT_THAT(findings_text(check({"s"})), HasSubstr("server BAD: the peer closed"));
    create({{"request_timeout", "50ms"}});
    redis_.on([](const Command&) { return Answer{"", false, true}; });
    EXPECT_THAT(findings_text(check({"s"})), HasSubstr("request_timeout"));
}

// As a relay does. The address of a node may be one that only the cluster itself can reach.
TEST_F(RedisSink, TheCheckFollowsACluster) {
    create();
    ScriptedRedis node;
    node.on([](const Command& command) -> std::optional<Answer> {
        if (command.front() == "XINFO")
            return Answer{"*2\r\n$6\r\nlength\r\n:7\r\n", false, false};
        return std::nullopt;
    });
    answer("XINFO", "-MOVED 1 127.0.0.1:" + node.port() + "\r\n", 1);
    EXPECT_THAT(
        findings_text(check({"s"})),
        HasSubstr("stream \"s\" ok: it exists, with 7 entries; it is on 127.0.0.1:" + node.port()));
    answer("XINFO", "-MOVED 1 redis.invalid:6379\r\n", 1);
    EXPECT_THAT(findings_text(check({"s"})), HasSubstr("node redis.invalid:6379 BAD: "));
    answer("XINFO", "-MOVED 1 :" + redis_.port() + "\r\n", 100);
    EXPECT_THAT(findings_text(check({"s"})), HasSubstr("stream \"s\" BAD: too many redirects"));
    answer("XINFO", "-ASK 1 127.0.0.1:1\r\n");
    EXPECT_THAT(findings_text(check({"s"})), HasSubstr("stream \"s\" ok: it is moving"));
}

}  // namespace
}  // namespace outbox
