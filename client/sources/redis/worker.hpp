// The thread of a Redis source. It does all work on the network, in one session for each stream.
//
// Protocol: as of SourceThread.
//
//   under the mutex    claims, is_known() and failure() of each session, and next_: other threads
//                      take entries, and settle them
//   only the thread    the rest of each session: its connection, its questions without an answer,
//                      and what step() has noted
//
// A turn:
//
//   without the mutex  step() of each session reads, and only notes what has arrived
//   under the mutex    work() of each session enters the notes in its claims, and sends
//   without the mutex  logs, and waits for the connections or for other threads
//
// Sessions are created and destroyed while no thread runs. A delivery names its session, generation
// and entry in its handle, so settling it needs no pointer.
//
// Claims do not depend on a connection: when it is lost, acknowledgements that have no answer are
// sent over the next one, and entries on their way are read again. At the end each session gives
// back what it holds; the thread ends when all are settled, or at close_by_.
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

    // Throws SourceError.
    void load_positions(const LoadPositions& load);
    std::vector<Position> positions(std::span<const Delivery* const> deliveries);
    std::vector<Gap> gaps();

  private:
    void starts() override;
    bool is_known() const override;
    std::size_t buffered() const override;
    std::vector<Delivery> take(std::size_t most) override;
    void settle(std::span<const Delivery> deliveries) override;
    void give_back(std::span<const Delivery> deliveries) override;
    void give_back_all() override;
    void forget_all() override;
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
    std::vector<Position> saved_;                     // when the source was opened
    std::vector<Gap> gaps_;                           // of sessions that have ended
    std::size_t next_ = 0;  // the session to take deliveries from first; guarded by the mutex
};

}  // namespace inbox::redis
