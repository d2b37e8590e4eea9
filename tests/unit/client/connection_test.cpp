// A connection in pipeline mode, against a scripted server.
#include "connection.hpp"

#include <gmock/gmock.h>

#include <thread>

#include "unit/scripted_postgresql.hpp"

namespace inbox {
namespace {

using outbox::ScriptedPostgresql;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class ConnectionTest : public testing::Test {
  protected:
    ScriptedPostgresql server;
    Flag give_up;
    std::vector<std::string> logged;

    std::unique_ptr<Connection> connect(bool prepare = true) {
        return std::make_unique<Connection>(
            PQconnectdb(server.conninfo().c_str()), outbox::SessionKind::handlers, prepare, give_up,
            [this](Level, const std::string& message) { logged.push_back(message); });
    }

    std::vector<std::string> texts(const std::vector<ScriptedPostgresql::Statement>& statements) {
        std::vector<std::string> all;
        for (const auto& statement : statements)
            all.push_back(statement.text);
        return all;
    }
};

// Runs it and returns what it throws.
template <typename Thrown, typename Task>
Thrown thrown_by(Task task) {
    try {
        task();
    } catch (const Thrown& thrown) {
        return thrown;
    }
    ADD_FAILURE() << "nothing was thrown";
    std::abort();
}

TEST_F(ConnectionTest, SendsWithoutWaitingAndReadsTheAnswersTogether) {
    const auto connection = connect();
    server.on("SELECT 3", ScriptedPostgresql::value("three"));
    const int before = server.synchronized();
    connection->send(Whose::own, "SELECT 1");
    connection->send(Whose::handler, "SELECT 2", {"x", std::nullopt});
    connection->send(Whose::own, "SELECT 3");
    EXPECT_EQ(connection->finish().text(0, 0), "three");
    EXPECT_EQ(server.synchronized(), before + 1);
    EXPECT_THAT(texts(server.committed("SELECT ")),
                ElementsAre(HasSubstr("set_config"), "SELECT 1", "SELECT 2", "SELECT 3"));
    EXPECT_THAT(server.received("SELECT 2").front().parameters, ElementsAre("x", std::nullopt));
    EXPECT_EQ(connection->finish().native(), nullptr) << "there is nothing to wait for";
}

TEST_F(ConnectionTest, NothingBehindAFailureIsExecuted) {
    const auto connection = connect();
    server.on("SELECT 2", ScriptedPostgresql::error("23505", "twice"));
    connection->send(Whose::own, "SELECT 1");
    connection->send(Whose::handler, "SELECT 2");
    connection->send(Whose::own, "SELECT 3");
    const auto error = thrown_by<StatementError>([&] { connection->finish(); });
    EXPECT_EQ(error.whose(), Whose::handler);
    EXPECT_EQ(error.sqlstate(), "23505");
    EXPECT_STREQ(error.what(), "twice");
    EXPECT_EQ(server.count("SELECT 3"), 0u);
    EXPECT_THAT(server.committed("SELECT 1"), SizeIs(0)) << "outside a transaction all is one";
    connection->run(Whose::own, "SELECT 4");
    EXPECT_THAT(server.committed("SELECT 4"), SizeIs(1)) << "and the connection goes on";
}

// libpq would pass on what is before it.
TEST_F(ConnectionTest, EveryByteArrivesOrIsRefused) {
    const auto connection = connect();
    for (int byte = 0; byte < 256; byte++) {
        const std::string text = {'a', static_cast<char>(byte), 'b'};
        if (byte == 0) {
            for (const auto& [statement, parameter] :
                 {std::pair<std::string, std::string>{"SELECT $1", text}, {"SELECT" + text, "x"}}) {
                const auto error = thrown_by<StatementError>([&] {
                    connection->send(Whose::handler, statement, {"x", parameter});
                });
                EXPECT_EQ(error.sqlstate(), "22021");
                EXPECT_EQ(error.whose(), Whose::handler);
            }
            continue;
        }
        connection->run(Whose::handler, "SELECT $1", {text});
        EXPECT_THAT(server.received("SELECT $1").back().parameters, ElementsAre(text)) << byte;
    }
    connection->run(Whose::handler, "SELECT bytes", {bytes(std::string_view("a\0b", 3))});
    EXPECT_THAT(server.received("SELECT bytes").back().parameters, ElementsAre("\\x610062"));
}

TEST_F(ConnectionTest, TheSessionIsRestoredOnceChangesWereExpected) {
    const auto connection = connect();
    connection->restore_session();
    connection->finish();
    EXPECT_EQ(server.count("RESET ALL"), 0u);
    server.on("pg_settings",
              ScriptedPostgresql::Answer{.columns = {"name", "setting"},
                                         .rows = {{"application", "x"}, {"role", "app"}}},
              1);
    connection->run(Whose::own, "SELECT $1", {"x"});
    for (int i = 0; i < 2; i++) {
        connection->expect_changes();
        connection->restore_session();
        connection->run(Whose::own, "SELECT $1", {"x"});
    }
    EXPECT_EQ(server.count("pg_settings"), 1u);
    EXPECT_EQ(server.count("RESET ALL"), 2u);
    EXPECT_THAT(server.received("set_config($1, $2, false), ").back().parameters,
                ElementsAre("application", "x", "role", "app"));
    EXPECT_EQ(server.count("DEALLOCATE ALL"), 2u);
}

TEST_F(ConnectionTest, TheTransactionsStateIsKnown) {
    const auto connection = connect();
    EXPECT_TRUE(connection->is_idle());
    connection->run(Whose::own, "BEGIN");
    EXPECT_TRUE(connection->in_transaction());
    server.on("SELECT 1", ScriptedPostgresql::error("22012"));
    EXPECT_THROW(connection->run(Whose::handler, "SELECT 1"), StatementError);
    EXPECT_FALSE(connection->in_transaction() || connection->is_idle()) << "it has failed";
    connection->roll_back();
    EXPECT_TRUE(connection->is_idle());
}

// ------------------------------------------------------------------------------------------------
// Prepared statements
// ------------------------------------------------------------------------------------------------

TEST_F(ConnectionTest, PreparesAStatementOnce) {
    const auto connection = connect();
    for (int i = 0; i < 3; i++)
        connection->run(Whose::handler, "SELECT $1", {std::to_string(i)});
    connection->run(Whose::own, "BEGIN");
    EXPECT_EQ(server.prepared(), 1);
    EXPECT_EQ(server.count("SELECT $1"), 3u);
}

TEST_F(ConnectionTest, PreparesNothingIfItMayNot) {
    const auto connection = connect(false);
    connection->run(Whose::handler, "SELECT $1", {"x"});
    EXPECT_EQ(server.prepared(), 0);
}

// A handler that writes values into its statements must not fill the server's memory.
TEST_F(ConnectionTest, PreparesALimitedNumberOfStatements) {
    const auto connection = connect();
    for (int i = 0; i < 210; i++)
        connection->send(Whose::handler, "SELECT $1, " + std::to_string(i), {"x"});
    connection->finish();
    EXPECT_EQ(server.prepared(), 200);
    EXPECT_EQ(server.count("SELECT $1, "), 210u);
}

TEST_F(ConnectionTest, AStatementThatCouldNotBePreparedIsPreparedTheNextTime) {
    const auto connection = connect();
    server.on_prepare("FROM item", ScriptedPostgresql::error("42P01"), 1);
    const std::string statement = "SELECT $1 FROM item";
    EXPECT_THROW(connection->run(Whose::handler, statement, {"x"}), StatementError);
    connection->run(Whose::handler, statement, {"x"});
    EXPECT_THAT(server.committed(statement), SizeIs(1));
}

TEST_F(ConnectionTest, AStatementThatWasSkippedIsPreparedTheNextTime) {
    const auto connection = connect();
    server.on("SELECT 1", ScriptedPostgresql::error("22012"), 1);
    connection->send(Whose::own, "SELECT 1");
    connection->send(Whose::own, "SELECT $1", {"x"});
    EXPECT_THROW(connection->finish(), StatementError);
    connection->run(Whose::own, "SELECT $1", {"x"});
    EXPECT_THAT(server.committed("SELECT $1"), SizeIs(1));
}

TEST_F(ConnectionTest, ForgetsWhatAPoolerHasForgotten) {
    const auto connection = connect();
    connection->run(Whose::own, "SELECT $1", {"x"});
    server.forget_prepared();
    const auto error =
        thrown_by<StatementError>([&] { connection->run(Whose::own, "SELECT $1", {"x"}); });
    EXPECT_EQ(error.sqlstate(), "26000");
    connection->forget_statements();
    connection->run(Whose::own, "SELECT $1", {"x"});
    EXPECT_EQ(server.count("SELECT $1"), 2u);
    EXPECT_EQ(server.prepared(), 2);
}

// ------------------------------------------------------------------------------------------------
// Connections that are lost
// ------------------------------------------------------------------------------------------------

TEST_F(ConnectionTest, AConnectionThatCouldNotBeMadeIsLost) {
    server.on("login", ScriptedPostgresql::fatal("53300"));
    const auto error = thrown_by<ConnectionLost>([&] { connect(); });
    EXPECT_THAT(error.what(), HasSubstr("scripted"));
    EXPECT_EQ(error.sqlstate(), "08006");
    EXPECT_THROW(Connection(nullptr, outbox::SessionKind::handlers, true, give_up, {}),
                 ConnectionLost);
}

TEST_F(ConnectionTest, ALostConnectionIsNoFailureOfTheStatement) {
    for (const auto end : {ScriptedPostgresql::End::before, ScriptedPostgresql::End::after}) {
        const auto connection = connect();
        server.on("INSERT", ScriptedPostgresql::lost(end), 1);
        EXPECT_THROW(connection->run(Whose::handler, "INSERT 1"), ConnectionLost);
    }
}

TEST_F(ConnectionTest, AServerThatIsShutDownIsALostConnection) {
    for (const char* sqlstate : {"57P01", "57P02", "57P03", "57P05", "08006"}) {
        const auto connection = connect();
        server.on("SELECT 1", ScriptedPostgresql::error(sqlstate), 1);
        EXPECT_THROW(connection->run(Whose::handler, "SELECT 1"), ConnectionLost) << sqlstate;
    }
}

TEST_F(ConnectionTest, WaitsForAServerThatIsSilentUntilItIsToGiveUp) {
    const auto connection = connect();
    server.hold("SELECT 1");
    std::thread impatient([&] {
        server.wait_for("SELECT 1");
        give_up.raise();
    });
    const auto error = thrown_by<ConnectionLost>([&] { connection->run(Whose::own, "SELECT 1"); });
    impatient.join();
    EXPECT_STREQ(error.what(), "the consumer was stopped");
}

// There is no way back to the pipeline.
TEST_F(ConnectionTest, CopyIsNotForThePipeline) {
    const auto connection = connect();
    server.on("COPY", {.is_copy = true});
    const auto error =
        thrown_by<ConnectionLost>([&] { connection->run(Whose::handler, "COPY t FROM STDIN"); });
    EXPECT_THAT(error.what(), HasSubstr("native()"));
}

// More than the buffers of both sides hold, so that the client has to read while it writes.
TEST_F(ConnectionTest, ManyLargeStatementsAndAnswersDoNotBlockEachOther) {
    const auto connection = connect();
    const std::string large(1 << 20, 'x');
    server.on("SELECT $1", ScriptedPostgresql::value(large));
    for (int i = 0; i < 12; i++)
        connection->send(Whose::handler, "SELECT $1", {large});
    EXPECT_EQ(connection->finish().text(0, 0).size(), large.size());
    EXPECT_EQ(server.count("SELECT $1"), 12u);
}

// ------------------------------------------------------------------------------------------------
// What else the server says
// ------------------------------------------------------------------------------------------------

TEST_F(ConnectionTest, NoticesGoToTheLog) {
    const auto connection = connect();
    server.on("SELECT 1", ScriptedPostgresql::Answer{.notice = "mind the gap"});
    connection->run(Whose::own, "SELECT 1");
    EXPECT_THAT(logged, ElementsAre(HasSubstr("mind the gap")));
}

TEST_F(ConnectionTest, RollsBackWhateverWasSent) {
    const auto connection = connect();
    connection->run(Whose::own, "BEGIN");
    server.on("SELECT 1", ScriptedPostgresql::error("22012"));
    connection->send(Whose::handler, "SELECT 1");
    connection->send(Whose::handler, "SELECT 2");
    connection->roll_back();
    EXPECT_TRUE(connection->is_idle());
    EXPECT_THAT(server.committed("SELECT 2"), SizeIs(0));
}

TEST_F(ConnectionTest, AConnectionThatCannotRollBackIsLost) {
    const auto connection = connect();
    connection->run(Whose::own, "BEGIN");
    server.on("ROLLBACK", ScriptedPostgresql::error("55000"));
    EXPECT_THROW(connection->roll_back(), ConnectionLost);
}

// ------------------------------------------------------------------------------------------------
// Without the pipeline, for handlers
// ------------------------------------------------------------------------------------------------

TEST_F(ConnectionTest, AHandlerGetsAPlainConnectionWithNothingUnderWay) {
    const auto connection = connect();
    connection->run(Whose::own, "BEGIN");
    connection->send(Whose::handler, "INSERT 1");
    PGconn* const plain = connection->plain();
    EXPECT_EQ(PQpipelineStatus(plain), PQ_PIPELINE_OFF);
    EXPECT_FALSE(PQisnonblocking(plain));
    PQclear(PQexec(plain, "INSERT 2"));
    EXPECT_NO_THROW(connection->check_plain());
    connection->run(Whose::own, "COMMIT");
    EXPECT_THAT(texts(server.committed("INSERT")), ElementsAre("INSERT 1", "INSERT 2"));
}

TEST_F(ConnectionTest, WhatWasQueuedBeforeFailsBeforeTheHandlerGetsIt) {
    const auto connection = connect();
    connection->run(Whose::own, "BEGIN");
    server.on("INSERT 1", ScriptedPostgresql::error("23505"));
    connection->send(Whose::handler, "INSERT 1");
    EXPECT_THROW(connection->plain(), StatementError);
}

TEST_F(ConnectionTest, ATransactionThatAHandlerHasEndedIsItsFailure) {
    const auto connection = connect();
    connection->run(Whose::own, "BEGIN");
    PQclear(PQexec(connection->plain(), "ROLLBACK"));
    const auto error = thrown_by<StatementError>([&] { connection->check_plain(); });
    EXPECT_EQ(error.whose(), Whose::handler);
    EXPECT_EQ(error.sqlstate(), "25000");
}

TEST_F(ConnectionTest, WhatAHandlerHasLeftUnderWayIsItsFailure) {
    const auto connection = connect();
    connection->run(Whose::own, "BEGIN");
    ASSERT_TRUE(PQsendQuery(connection->plain(), "SELECT 1"));
    const auto error = thrown_by<StatementError>([&] { connection->send(Whose::own, "COMMIT"); });
    EXPECT_EQ(error.whose(), Whose::handler);
    EXPECT_EQ(error.sqlstate(), "55000");
}

TEST_F(ConnectionTest, AConnectionThatWasLostInAHandlersHandsIsLost) {
    const auto connection = connect();
    connection->run(Whose::own, "BEGIN");
    server.on("SELECT 1", ScriptedPostgresql::lost(ScriptedPostgresql::End::before));
    PQclear(PQexec(connection->plain(), "SELECT 1"));
    EXPECT_THROW(connection->check_plain(), ConnectionLost);
}

}  // namespace
}  // namespace inbox
