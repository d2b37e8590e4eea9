// The thread of a Redis source. It does all work on the network, in one session for each stream.
//
// Protocol. Other threads never use the connections. receive(), ack() and nack() change the claims of the
// sessions under the mutex and wake the thread. The thread lets the sessions step() on the network without
// the mutex, where they only note what has arrived; under it they enter that and send. `changed_` is
// notified after each such turn. A failure of a session stays until the next open(). Sessions are created and
// destroyed by the thread, and by others only while no thread runs.
//
// Claims do not depend on a connection: when it is lost, acknowledgements that have no answer are sent
// over the next one, and entries on their way are read again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "inbox/source.hpp"
#include "redis/session.hpp"

namespace inbox::redis {

class Worker {
  public:
    explicit Worker(Setup setup);
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    // Waits until all groups are known. Throws SourceError.
    void open(const Log& log);
    std::vector<Delivery> receive(std::size_t most, std::chrono::milliseconds wait);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);
    void close(std::chrono::milliseconds limit) noexcept;

    const Setup& setup() const { return setup_; }

  private:
    enum class Phase { closed, open, closing };

    void start(const Log& log);
    void wake();
    bool is_known() const;
    bool has_deliveries() const;
    const Session::Failure* failure() const;
    static void raise(const Session::Failure& failure);
    template <class Act>
    void settle(std::span<const Delivery> deliveries, Act act);

    // The thread's.
    void run();
    bool turn();
    void wait(outbox::Micros until);
    bool is_settled() const;

    const Setup setup_;
    const outbox::SystemClock clock_;
    int wake_;   // an eventfd
    int epoll_;  // of wake_ and the connections
    std::thread thread_;
    Log log_;

    std::mutex mutex_;
    std::condition_variable changed_;
    // These are guarded by the mutex.
    Phase phase_ = Phase::closed;
    std::vector<std::unique_ptr<Session>> sessions_;  // of the streams, while there is a thread
    std::size_t next_ = 0;                            // the session to take deliveries from first
    std::optional<Session::Failure> ended_;           // the thread has ended by itself
    outbox::Micros close_by_ = outbox::never;
};

}  // namespace inbox::redis
