// The thread of a Redis source. It does all work on the network, in one session for each stream.
//
// Protocol: as of SourceThread. The thread lets the sessions step() on the network without the mutex,
// where they only note what has arrived; under it they enter that and send. Sessions are created and
// destroyed while no thread runs.
//
// Claims do not depend on a connection: when it is lost, acknowledgements that have no answer are sent
// over the next one, and entries on their way are read again.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "redis/session.hpp"
#include "worker/source_thread.hpp"

namespace inbox::redis {

class Worker : public worker::SourceThread {
  public:
    explicit Worker(Setup setup);
    ~Worker() override;

    const Setup& setup() const { return setup_; }

  private:
    void starts() override;
    bool is_known() const override;
    std::size_t buffered() const override;
    std::vector<Delivery> take(std::size_t most) override;
    void settle(std::span<const Delivery> deliveries) override;
    void give_back(std::span<const Delivery> deliveries) override;
    void give_back_all() override;
    void forget_all() override { sessions_.clear(); }
    int prepare() override { return epoll_; }
    bool turn() override;
    void clean_up() noexcept override {}

    template <class Act>
    void for_each(std::span<const Delivery> deliveries, Act act);
    outbox::Micros work();
    bool is_settled() const;
    bool may_end();

    const Setup setup_;
    const int epoll_;  // of the connections
    // The claims of each are guarded by the mutex; the rest belongs to the thread.
    std::vector<std::unique_ptr<Session>> sessions_;  // of the streams
    std::size_t next_ = 0;  // the session to take deliveries from first; guarded by the mutex
};

}  // namespace inbox::redis
