// A source in memory, for tests of your own handlers. It hands out the events that the test adds,
// and records which of them were acknowledged and which were given back.
//
//     auto script = std::make_shared<inbox::Script>();
//     inbox::Consumer consumer({.name = "test"}, std::make_unique<inbox::ScriptedSource>(script),
//                              connect, handler);
//     std::thread runner([&] { consumer.run(); });
//     script->deliver(event);
//     const bool settled = script->wait_until_settled(std::chrono::seconds(10));
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

// The events that a ScriptedSource hands out, and the record of calls.
//
// Thread-safety: any thread may call any function at any time. Lifetime: shared by the test and the
// source.
class Script {
  public:
    // Adds an event after those added before. Its message id is its number, counted from 1, and its
    // time of publication is now. The second form takes both from the delivery.
    void deliver(Event event);
    void deliver(Delivery delivery);

    // Makes the next `times` calls of open() or receive() throw SourceError.
    void fail_open(int times, const std::string& message = "scripted", bool transient = true);
    void fail_receive(int times, const std::string& message = "scripted", bool transient = true);

    // Waits until every event that was added is acknowledged. Returns false if that takes longer
    // than `limit`.
    bool wait_until_settled(std::chrono::milliseconds limit) const;

    // Return message ids, and times, in the order of the calls.
    std::vector<std::string> acked() const;
    std::vector<std::string> nacked() const;
    std::vector<Time> seeks() const;
    // Returns the number of successful calls of open().
    int opened() const;
    // Returns whether close() was called after the last open().
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

// A delivery that is nacked comes again. When the source is opened again, so do all deliveries that
// were not acknowledged, before all others and in their old order.
//
// Thread-safety: as Source says.
class ScriptedSource final : public Source {
  public:
    // The consumer saves its offset under the name `subscription`.
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
