// A connection of outbox-relay to a scripted server.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <list>
#include <string>

#include "relay/database/connection.hpp"
#include "unit/scripted_postgresql.hpp"

namespace outbox::relay {
namespace {

class NobodysConnection final : public Connection::Owner {
  public:
    void connection_ready(Connection&) override {}
    void connection_lost(Connection&) override { losses++; }

    int losses = 0;
};

// An event that wakes a poller.
class Wake final : public Watcher {
  public:
    explicit Wake(Poller& poller) : poller_(poller), descriptor_(eventfd(0, EFD_CLOEXEC)) {
        poller.watch(descriptor_, EPOLLIN, *this);
    }
    ~Wake() {
        poller_.forget(descriptor_);
        close(descriptor_);
    }
    void signal() const { eventfd_write(descriptor_, 1); }
    void ready() override { is_woken = true; }

    bool is_woken = false;

  private:
    Poller& poller_;
    const int descriptor_;
};

class ConnectionTest : public testing::Test {
  protected:
    ConnectionTest() {
        connection_.open();
        wait_until([&] { return connection_.state() == Connection::State::idle; });
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

TEST_F(ConnectionTest, ALostConnectionDoesNotForgetTheDescriptorsOfOthers) {
    server_.drop_connections();
    std::string error;
    Statement statement{.text = "SELECT $1"};
    statement.parameters.text(std::string(1 << 20, 'x'));  // takes more than one call to send
    statement.done = [&](const Answer& answer) { error = answer.error; };
    connection_.run(std::move(statement));
    ASSERT_EQ(connection_.deadline(), 0) << "it was not noticed while sending";

    // libpq has closed its socket. One of these gets the number.
    std::list<Wake> wakes;
    for (int i = 0; i < 16; i++)
        wakes.emplace_back(poller_);
    connection_.step(clock_.now());
    EXPECT_NE(error, "");
    EXPECT_EQ(owner_.losses, 1);

    for (const Wake& wake : wakes)
        wake.signal();
    poller_.wait(0);
    for (const Wake& wake : wakes)
        EXPECT_TRUE(wake.is_woken);
}

}  // namespace
}  // namespace outbox::relay
