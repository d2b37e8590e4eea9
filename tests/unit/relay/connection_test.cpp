// A connection of outbox-relay to a scripted server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "relay/database/connection.hpp"
#include "unit/scripted_postgresql.hpp"

namespace outbox::relay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class NobodysConnection final : public Connection::Owner {
  public:
    void connection_ready(Connection&) override {}
    void connection_lost(Connection&) override { losses++; }

    int losses = 0;
};

class ConnectionTest : public testing::Test {
  protected:
    ConnectionTest() { server_.on("pg_backend_pid", ScriptedPostgresql::value("f")); }

    void connect() {
        connection_.open();
        wait_until([&] { return connection_.state() == Connection::State::idle; });
    }

    // Returns what the server gets.
    std::vector<std::string> run(Call call) {
        const std::size_t before = server_.committed("").size();
        bool is_done = false;
        connection_.run({.call = std::move(call), .done = [&](const Answer& answer) {
                             EXPECT_TRUE(answer.ok) << answer.error;
                             is_done = true;
                         }});
        wait_until([&] { return is_done; });
        std::vector<std::string> texts;
        for (const auto& one : server_.committed(""))
            texts.push_back(one.text);
        texts.erase(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(before));
        return texts;
    }

    template <class Condition>
    void wait_until(Condition condition) {
        while (!condition()) {
            connection_.step(clock_.now());
            poller_.wait(condition() ? 0 : connection_.deadline() - clock_.now());
        }
    }

    ScriptedPostgresql server_;
    const ConnectionParameters parameters_ =
        connection_parameters({.url = server_.conninfo()}, {}, "test");
    const SystemClock clock_;
    Poller poller_;
    NobodysConnection owner_;
    ConnectionCounts counts_;
    Connection connection_{owner_, poller_, clock_, counts_, parameters_, 1};
};

TEST_F(ConnectionTest, SettingsOfADirectSessionAreMadeOnce) {
    connect();
    EXPECT_TRUE(connection_.keeps_session());
    EXPECT_THAT(server_.committed("")[0].text, HasSubstr("set_config('statement_timeout', '0', "));
    EXPECT_THAT(run({.text = "SELECT 1"}), ElementsAre("SELECT 1"));
    EXPECT_THAT(run({.text = "SELECT 1", .server_time_limit = seconds(1)}),
                ElementsAre(HasSubstr("set_config('statement_timeout', $1, true)"), "SELECT 1"));
}

TEST_F(ConnectionTest, BehindAPoolerEachTransactionHasItsSettings) {
    server_.on("pg_backend_pid", ScriptedPostgresql::value("t"));
    connect();
    EXPECT_FALSE(connection_.keeps_session());
    for (int i = 0; i < 2; i++)
        EXPECT_THAT(
            run({.text = "SELECT 1", .server_time_limit = seconds(1)}),
            ElementsAre("SET transaction_read_only = off",
                        AllOf(HasSubstr("set_config('statement_timeout', '0', true)"),
                              HasSubstr("set_config('role', 'none', true)")),
                        HasSubstr("set_config('statement_timeout', $1, true)"), "SELECT 1"));
}

TEST_F(ConnectionTest, ASessionWhoseSettingsAreCancelledIsBegunAgain) {
    server_.on("pg_backend_pid", ScriptedPostgresql::error("57014"), 1);
    connect();
    EXPECT_EQ(counts_.connects, 1U);
    EXPECT_EQ(owner_.losses, 0);
}

TEST_F(ConnectionTest, ASessionWithoutItsSettingsIsNotUsed) {
    server_.on("pg_backend_pid", ScriptedPostgresql::error("42501"), 1);
    connection_.open();
    wait_until([&] { return owner_.losses == 1; });
    connect();
    EXPECT_EQ(counts_.connects, 1U);
}

TEST_F(ConnectionTest, AConnectionThatIsLostWhileSendingFailsItsStatement) {
    connect();
    server_.drop_connections();
    std::string error;
    Call call{.text = "SELECT $1"};
    call.parameters.text(std::string(1 << 20, 'x'));  // takes more than one call to send
    connection_.run(
        {.call = std::move(call), .done = [&](const Answer& answer) { error = answer.error; }});
    EXPECT_EQ(error, "") << "run() must not call back";
    wait_until([&] { return owner_.losses == 1; });
    EXPECT_NE(error, "");
}

}  // namespace
}  // namespace outbox::relay
