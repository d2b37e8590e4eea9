// The postgresql sink without a server, and against a scripted one.
#include <gmock/gmock.h>

#include <deque>
#include <thread>

#include "sinks/postgresql/login_step.hpp"
#include "unit/drive.hpp"
#include "unit/failing_new.hpp"
#include "unit/scripted_postgresql.hpp"

namespace outbox {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using End = ScriptedPostgresql::End;
using Statement = ScriptedPostgresql::Statement;

class PostgresqlSink : public DrivenSink {};

TEST_F(PostgresqlSink, ThrowsBadAllocWhenMemoryRunsOut) {
    Event event;
    event.position = 1;
    event.topic = event.aggregate_type = event.aggregate_id = event.event_type = "e";
    Batch batch;
    batch.events = {&event};
    const Outcome outcome = send_without_memory(
        batch,
        [&] {
            make({{"url", "postgresql://127.0.0.1:1/nowhere"}}, {});
        },
        allocations_until_failure, allocation_failed);
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.batch, &batch);
}

// Batches of one event each, which the parameters of receive() tell apart by their payload.
class PostgresqlSinkAndServer : public DrivenSink {
  protected:
    PostgresqlSinkAndServer() {
        server_.on("rolsuper", ScriptedPostgresql::value(""));
        server_.on("inbox.receive", ScriptedPostgresql::value("1"));
    }

    void create(std::vector<Option> options = {}) {
        while (LoginStep::one_is_left_over())  // of a test before, and about to end
            std::this_thread::yield();
        options.push_back(
            {"url", "postgresql://sender@127.0.0.1:" + std::to_string(server_.port()) +
                        "/shop?sslmode=disable&gssencmode=disable"});
        make(options, {});
    }

    Batch& batch(const std::string& name) {
        Event& event = events_.emplace_back();
        event.position = static_cast<std::int64_t>(events_.size());
        event.topic = event.aggregate_type = event.aggregate_id = event.event_type = "e";
        names_.push_back(name);
        event.payload = names_.back();
        event.has_payload = true;
        Batch& batch = batches_.emplace_back();
        batch.events = {&event};
        return batch;
    }

    // Whether the statement brings this batch.
    static bool brings(const Statement& statement, const std::string& name) {
        return !statement.parameters.empty() && statement.parameters.back()->ends_with(name);
    }
    // What the server says to receive() of one batch.
    void answer(const std::string& name, ScriptedPostgresql::Answer answer) {
        server_.on("inbox.receive", [=](const Statement& statement) {
            return brings(statement, name) ? answer : ScriptedPostgresql::value("1");
        });
    }
    // Names of the batches that took effect, in order.
    std::vector<std::string> taken() const {
        std::vector<std::string> all;
        for (const Statement& statement : server_.committed("inbox.receive"))
            if (const auto name = std::ranges::find_if(
                    names_, [&](const std::string& n) { return brings(statement, n); });
                name != names_.end())
                all.push_back(*name);
        return all;
    }

    static std::vector<Fate> fates(const std::vector<Outcome>& outcomes) {
        std::vector<Fate> all;
        for (const Outcome& outcome : outcomes)
            all.push_back(outcome.fate);
        return all;
    }

    // Steps the sink until the server has this many statements with the text.
    void step_until_received(std::string_view part, std::size_t count, std::vector<Outcome>& all) {
        const Micros give_up = clock_.now() + patience;
        while (server_.count(part) < count && clock_.now() < give_up)
            step_once(all);
        EXPECT_GE(server_.count(part), count) << part;
    }

    ScriptedPostgresql server_;
    std::deque<std::string> names_;
    std::deque<Event> events_;
    std::deque<Batch> batches_;
};

TEST_F(PostgresqlSinkAndServer, ConfirmsWhenTheCommitIsAnswered) {
    create({{"consumer", "catalog"}});
    Batch& a = batch("a");
    server_.hold("COMMIT");
    sink_->submit(a);
    std::vector<Outcome> all;
    step_until_received("COMMIT", 1, all);
    EXPECT_THAT(all, IsEmpty()) << "what is not committed is not confirmed";
    server_.let_go();
    const Outcome outcome = outcomes(1).front();
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_EQ(outcome.batch, &a);
    EXPECT_THAT(taken(), ElementsAre("a"));
    const Statement sent = server_.received("inbox.receive").front();
    ASSERT_THAT(sent.parameters, SizeIs(16));
    EXPECT_EQ(sent.parameters[0], "catalog");
    EXPECT_EQ(sent.parameters[1], "shop");
}

TEST_F(PostgresqlSinkAndServer, BatchesFollowARest) {
    create();
    for (const char* name : {"a", "b", "c"}) {
        ASSERT_EQ(send(batch(name)).fate, Fate::confirmed);
        std::vector<Outcome> none;
        while (sink_->deadline() != never)
            step_once(none);
        EXPECT_THAT(none, IsEmpty());
    }
    answer("e", ScriptedPostgresql::error("23514", "refused"));
    for (const char* name : {"d", "e", "f"})
        sink_->submit(batch(name));
    EXPECT_THAT(fates(outcomes(3)), ElementsAre(Fate::confirmed, Fate::refused, Fate::undone));
    EXPECT_THAT(taken(), ElementsAre("a", "b", "c", "d"));
}

TEST_F(PostgresqlSinkAndServer, BatchesTravelWhileOthersAreAtWork) {
    create();
    ASSERT_EQ(send(batch("a")).fate, Fate::confirmed);
    server_.hold("inbox.receive");
    for (const char* name : {"b", "c", "d", "e"})
        sink_->submit(batch(name));
    std::vector<Outcome> all;
    step_until_received("inbox.receive", 2, all);
    server_.let_go();
    EXPECT_THAT(fates(outcomes(4)), testing::Each(Fate::confirmed));
    EXPECT_THAT(taken(), ElementsAre("a", "b", "c", "d", "e"));
    EXPECT_EQ(server_.connections(), 1);
    EXPECT_EQ(server_.prepared(), 1);
}

TEST_F(PostgresqlSinkAndServer, ARefusalInTheMiddleLeavesWhatCameBeforeAndUndoesTheRest) {
    for (const char* sqlstate : {"22P02", "23505", "21000", "44000", "54000", "P0001"}) {
        create();
        const std::size_t before = taken().size();
        answer("b", ScriptedPostgresql::error(sqlstate, "not this one"));
        std::vector<Batch*> sent;
        for (const char* name : {"a", "b", "c", "d"}) {
            sent.push_back(&batch(name));
            sink_->submit(*sent.back());
        }
        const auto all = outcomes(4);
        EXPECT_THAT(fates(all),
                    ElementsAre(Fate::confirmed, Fate::refused, Fate::undone, Fate::undone))
            << sqlstate;
        for (std::size_t i = 0; i < 4; i++)
            EXPECT_EQ(all[i].batch, sent[i]);
        EXPECT_THAT(all[1].error, HasSubstr("not this one"));
        EXPECT_EQ(taken().size(), before + 1) << "no batch takes effect after one that failed";
        // Without it they go through, over another connection.
        EXPECT_EQ(send(batch("c")).fate, Fate::confirmed);
    }
}

TEST_F(PostgresqlSinkAndServer, ARefusalAtTheCommitIsAboutTheData) {
    create();
    server_.on("COMMIT", ScriptedPostgresql::error("23503", "deferred"), 1);
    sink_->submit(batch("a"));
    sink_->submit(batch("b"));
    EXPECT_THAT(fates(outcomes(2)), ElementsAre(Fate::refused, Fate::undone));
    EXPECT_THAT(taken(), IsEmpty());
}

TEST_F(PostgresqlSinkAndServer, ErrorsThatAreNotAboutTheDataBlameNoEvent) {
    for (const char* sqlstate : {"40001", "40P01", "53100", "57014", "57P01", "25006", "XX000"}) {
        create();
        answer("a", ScriptedPostgresql::error(sqlstate));
        sink_->submit(batch("a"));
        sink_->submit(batch("b"));
        EXPECT_THAT(fates(outcomes(2)), ElementsAre(Fate::unavailable, Fate::undone)) << sqlstate;
    }
    EXPECT_THAT(taken(), IsEmpty());
}

// The inbox has it already when it comes again.
TEST_F(PostgresqlSinkAndServer, ACommitWhoseAnswerIsLostIsNotConfirmed) {
    for (const End end : {End::before, End::after}) {
        create();
        server_.on("COMMIT", ScriptedPostgresql::lost(end), 1);
        sink_->submit(batch("a"));
        sink_->submit(batch("b"));
        EXPECT_THAT(fates(outcomes(2)), ElementsAre(Fate::unavailable, Fate::undone));
        EXPECT_THAT(taken(), SizeIs(end == End::after)) << "whatever became of it";
    }
    EXPECT_EQ(send(batch("c")).fate, Fate::confirmed) << "over another connection";
}

TEST_F(PostgresqlSinkAndServer, WhatWasConfirmedBeforeTheConnectionIsLostStaysSo) {
    create();
    answer("b", ScriptedPostgresql::lost(End::before));
    for (const char* name : {"a", "b", "c"})
        sink_->submit(batch(name));
    EXPECT_THAT(fates(outcomes(3)), ElementsAre(Fate::confirmed, Fate::unavailable, Fate::undone));
    EXPECT_THAT(taken(), ElementsAre("a"));
}

TEST_F(PostgresqlSinkAndServer,
       AConnectionThatIsLostWhileNothingIsUnderWayFailsNoMoreThanOneBatch) {
    create();
    ASSERT_EQ(send(batch("a")).fate, Fate::confirmed);
    server_.drop_connections();
    Outcome outcome = send(batch("b"));
    if (outcome.fate != Fate::confirmed) {
        EXPECT_EQ(outcome.fate, Fate::unavailable);
        outcome = send(batch("b"));
    }
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
}

TEST_F(PostgresqlSinkAndServer, AServerThatRollsBackHasNotTakenIt) {
    create();
    server_.on("COMMIT", ScriptedPostgresql::Answer{.tag = "ROLLBACK"}, 1);
    const Outcome outcome = send(batch("a"));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("rolled the transaction back"));
    EXPECT_THAT(taken(), IsEmpty());
}

TEST_F(PostgresqlSinkAndServer, ASilentServerFailsAfterTheTimeLimit) {
    create({{"request_timeout", "1ms"}});
    server_.hold("inbox.receive");
    sink_->submit(batch("a"));
    sink_->submit(batch("b"));
    const auto all = outcomes(2);
    EXPECT_THAT(fates(all), ElementsAre(Fate::unavailable, Fate::undone));
    EXPECT_EQ(all[0].error, "no answer within 1ms (request_timeout)");
}

TEST_F(PostgresqlSinkAndServer, ALoginThatTakesTooLong) {
    create({{"connect_timeout", "1ms"}});
    server_.hold("login");
    const Outcome outcome = send(batch("a"));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.error, "no connection within 1ms (connect_timeout)");
}

TEST_F(PostgresqlSinkAndServer, ALoginThatIsRefusedBlamesNoEvent) {
    create();
    server_.on("login", ScriptedPostgresql::error("28P01", "no such role"), 1);
    const Outcome outcome = send(batch("a"));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("no such role"));
    EXPECT_EQ(send(batch("a")).fate, Fate::confirmed);
}

// Code of others must not run as a superuser.
TEST_F(PostgresqlSinkAndServer, SendsNothingAsASuperuser) {
    create();
    server_.on("rolsuper", ScriptedPostgresql::value("is or can become a superuser"));
    const Outcome outcome = send(batch("a"));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("superuser"));
    EXPECT_EQ(server_.count("inbox.receive"), 0u);
}

TEST_F(PostgresqlSinkAndServer, AMissingInboxIsExplained) {
    for (const auto& [sqlstate, hint] : {std::pair{"3F000", "CREATE EXTENSION pg_inbox"},
                                         {"42501", "inbox.grant_send('sender')"}}) {
        create();
        server_.on_prepare("inbox.receive", ScriptedPostgresql::error(sqlstate), 1);
        const Outcome outcome = send(batch("a"));
        EXPECT_EQ(outcome.fate, Fate::unavailable);
        EXPECT_THAT(outcome.error, HasSubstr(hint));
    }
    EXPECT_THAT(taken(), IsEmpty());
}

TEST_F(PostgresqlSinkAndServer, AnAnswerThatIsTooLargeIsNotRead) {
    create();
    answer("a", ScriptedPostgresql::value(std::string(4 << 20, 'x')));
    const Outcome outcome = send(batch("a"));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("the answer of the destination is too long"));
}

// libpq keeps some of what it got for as long as the connection is open.
TEST_F(PostgresqlSinkAndServer, AWornOutConnectionIsReplacedBetweenBatches) {
    create();
    answer("large", ScriptedPostgresql::value(std::string(600 << 10, 'x')));
    for (const char* name : {"a", "large", "b", "c"})
        sink_->submit(batch(name));
    EXPECT_THAT(fates(outcomes(4)), testing::Each(Fate::confirmed));
    EXPECT_EQ(send(batch("d")).fate, Fate::confirmed);
    EXPECT_THAT(taken(), ElementsAre("a", "large", "b", "c", "d"));
    EXPECT_EQ(server_.connections(), 2);
}

}  // namespace
}  // namespace outbox
