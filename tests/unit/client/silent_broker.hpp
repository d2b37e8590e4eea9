// A broker that accepts connections and never answers: a consumer that stops must not wait for it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>

#include "inbox/consumer.hpp"
#include "unit/loopback.hpp"
#include "unit/scripted_postgresql.hpp"

namespace inbox {

class SilentBroker {
  public:
    SilentBroker() : listener_(outbox::listen_on_loopback(port_)) {}
    ~SilentBroker() { close(listener_); }
    SilentBroker(const SilentBroker&) = delete;
    SilentBroker& operator=(const SilentBroker&) = delete;

    std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

    // The limits of the source must be longer than a test may take.
    void expect_stop_while_opening(std::unique_ptr<Source> source) {
        Consumer consumer(
            {.name = "c", .drain_limit = std::chrono::hours(1)}, std::move(source),
            [this] { return PQconnectdb(database_.conninfo().c_str()); },
            [](Transaction&, const Event&) {});
        std::future<void> run = std::async(std::launch::async, [&] { consumer.run(); });
        pollfd watched{listener_, POLLIN, 0};
        EXPECT_EQ(poll(&watched, 1, 120'000), 1) << "the source does not connect";
        consumer.stop();
        if (run.wait_for(std::chrono::seconds(120)) != std::future_status::ready) {
            ADD_FAILURE() << "the source is still opening";
            std::_Exit(1);  // nothing would end it
        }
        run.get();
    }

  private:
    outbox::ScriptedPostgresql database_;
    int port_ = 0;
    int listener_;
};

}  // namespace inbox
