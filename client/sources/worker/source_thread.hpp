// The thread of a source that does all work on the network, and the functions by which other
// threads reach it.
//
// Protocol. Other threads never use the network. receive(), ack() and nack() change what the source
// holds under the mutex, and wake the thread. The thread reads and waits on the network without the
// mutex. Under the mutex it enters what has arrived, and starts to send, which does not block.
// `changed_` is notified when messages have arrived, when is_known() becomes true, and after a
// failure; `failure_` stays until the next open(). Members of the thread are written by starts()
// only while no thread runs.
//
// End. close() gives back what was not settled, and waits for the thread, which settles what it can
// until `close_by_`. The last derived class calls close() in its destructor, because all parts must
// outlive the thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "core/secrets.hpp"
#include "inbox/source.hpp"

namespace inbox::worker {

class SourceThread {
  public:
    virtual ~SourceThread();
    SourceThread(const SourceThread&) = delete;
    SourceThread& operator=(const SourceThread&) = delete;

    // Waits until is_known(). Throws SourceError, also when interrupt() is called.
    void open(const Log& log);
    void interrupt() noexcept;
    std::vector<Delivery> receive(std::size_t most, std::chrono::milliseconds wait);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);
    void close(std::chrono::milliseconds limit) noexcept;

  protected:
    enum class Phase { closed, open, closing };
    struct Failure {
        std::string message;
        bool transient;
    };

    SourceThread();

    // These are called under the mutex.
    virtual void starts() = 0;
    virtual bool is_known() const = 0;
    virtual std::size_t buffered() const = 0;
    virtual std::vector<Delivery> take(std::size_t most) = 0;
    virtual void settle(std::span<const Delivery> deliveries) = 0;
    virtual void give_back(std::span<const Delivery> deliveries) = 0;
    virtual void give_back_all() = 0;
    virtual void forget_all() = 0;

    // These are called by the thread, without the mutex. prepare() returns the descriptor to wait
    // on. A turn returns false to end the thread.
    virtual int prepare() = 0;
    virtual bool turn() = 0;
    virtual void clean_up() noexcept = 0;

    // A text that fail() and note() leave out, for constructors.
    void keep_secret(std::string_view secret) { secrets_.add(secret); }

    // For the thread. Messages may have words of a server: they become one line without secrets.
    void wait(outbox::Micros until);
    void fail(std::string message, bool transient);  // under the mutex
    void note(Level level, std::string message);
    void tell();  // not under the mutex: the log is foreign code

    void wake();

    const outbox::SystemClock clock_;
    std::mutex mutex_;
    std::condition_variable changed_;
    // These are guarded by the mutex.
    Phase phase_ = Phase::closed;
    std::optional<Failure> failure_;  // nothing is received until the next open()
    outbox::Micros close_by_ = outbox::never;

  private:
    void start(const Log& log);
    std::string clean(std::string message) const;
    [[noreturn]] void raise();
    void run();

    int wake_;   // an eventfd
    int epoll_;  // of wake_ and the descriptor of prepare()
    outbox::Secrets secrets_;
    std::thread thread_;
    bool ended_ = false;        // by itself; guarded by the mutex
    bool interrupted_ = false;  // until close(); guarded by the mutex
    // These belong to the thread.
    Log log_;
    std::vector<std::pair<Level, std::string>> notes_;
};

}  // namespace inbox::worker
