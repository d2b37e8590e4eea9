// A source in memory, for tests of your own handlers: hands out what it is told to, and remembers
// what became of it.
//
//     auto script = std::make_shared<inbox::Script>();
//     inbox::Consumer consumer({.name = "test"}, std::make_unique<inbox::ScriptedSource>(script),
//     connect, handler); std::thread runner([&] { consumer.run(); }); script->deliver(event);
//     ASSERT_TRUE(script->wait_until_settled(std::chrono::seconds(10)));
//     consumer.stop();
//     runner.join();
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "inbox/source.hpp"

namespace inbox {

// What a ScriptedSource does, and what was done to it. All functions may be called from any thread.
class Script {
  public:
    // Hands out an event, after those that were given before. Its message id is its number, from 1;
    // it was published now.
    void deliver(Event event);
    void deliver(Delivery delivery);

    // Lets the next calls of open() or receive() fail so often.
    void fail_open(int times, const std::string& message = "scripted", bool transient = true);
    void fail_receive(int times, const std::string& message = "scripted", bool transient = true);

    // Waits until everything that was to be delivered is acknowledged; false: it was not by then.
    bool wait_until_settled(std::chrono::milliseconds limit) const;

    // Message ids, in the order of the calls.
    std::vector<std::string> acked() const;
    std::vector<std::string> nacked() const;
    std::vector<Time> seeks() const;
    int opened() const;  // how often
    bool closed() const;

  private:
    friend class ScriptedSource;
    struct Fault {
        int times = 0;
        std::string message;
        bool transient = true;
        void strike();
    };

    void open();
    std::vector<Delivery> receive(std::size_t max_messages, std::chrono::milliseconds wait);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);
    void close();
    void take_back();

    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    std::deque<Delivery> queue_;
    std::map<std::uint64_t, Delivery> handed_out_;  // by handle, which counts up
    std::uint64_t delivered_ = 0;
    std::uint64_t last_handle_ = 0;
    Fault open_fault_, receive_fault_;
    std::vector<std::string> acked_, nacked_;
    std::vector<Time> seeks_;
    int opened_ = 0;
    bool closed_ = false;
};

// What was handed out and not acknowledged comes again when it is nacked, and when the source is
// opened again: before all others, in the old order.
class ScriptedSource final : public Source {
  public:
    explicit ScriptedSource(std::shared_ptr<Script> script, std::string subscription = "scripted");

    std::string subscription() const override { return subscription_; }
    void open() override;
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    void nack(std::span<const Delivery> deliveries) override;
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

  private:
    std::shared_ptr<Script> script_;
    std::string subscription_;
};

}  // namespace inbox
