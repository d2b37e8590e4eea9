// Where events come from. The library has sources in <inbox/sources/...>; derive from Source to
// write another.
//
// A source hands out deliveries and keeps its claim on each of them until it is told to settle it:
// by extending leases from a thread of its own, or by keeping its connection. It survives the loss
// of the broker behind it: after another open(), what was not settled is handed out again, here or
// to another consumer.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

enum class Level { debug, info, warning, error };

// Receives messages of the library. Called from any of its threads; must not throw.
using Log = std::function<void(Level, const std::string& message)>;

// Order of calls: set_log(), open(), then receive() again and again, close() at the end. After an
// exception of open() or receive() comes another open().
//
// Thread-safety: open() and receive() are called by one thread. ack(), nack() and seek() are called
// by any thread, also while receive() waits. close() may be called while receive() waits, and ends
// that wait.
class Source {
  public:
    virtual ~Source() = default;

    // Returns the name under which offsets are saved. A consumer may read several subscriptions,
    // each with an offset of its own.
    virtual std::string subscription() const = 0;

    // Returns a name for log messages. It must hold no secrets.
    virtual std::string describe() const { return subscription(); }

    // Connects. Throws SourceError.
    virtual void open() = 0;

    // Returns the next deliveries, at most max_messages, those of one ordering key in their order.
    // Waits for at most `wait`, and returns none if nothing came. Throws SourceError.
    virtual std::vector<Delivery> receive(std::size_t max_messages,
                                          std::chrono::milliseconds wait) = 0;

    // These were applied and committed, and need not come again. May return before the broker
    // knows. A delivery that cannot be acknowledged comes again, and is then found to be a
    // duplicate.
    virtual void ack(std::span<const Delivery> deliveries) = 0;

    // These were not applied, and shall come again. Those of one ordering key are given in their
    // order.
    virtual void nack(std::span<const Delivery> deliveries) = 0;

    // Moves back or forward to what was published at this time. Deliveries handed out before are
    // given to nack() afterwards. Throws SourceError that is not transient if the source cannot
    // seek.
    virtual void seek(Time to) = 0;

    // Sends the acknowledgements that are left, gives back what was not settled, and disconnects.
    // Waits for at most `limit`.
    virtual void close(std::chrono::milliseconds limit) noexcept = 0;

    // Sets the log for what goes wrong between calls. Call it before open().
    void set_log(Log log) { log_ = std::move(log); }

  protected:
    void log(Level level, const std::string& message) const {
        if (log_)
            log_(level, message);
    }

  private:
    Log log_;
};

}  // namespace inbox
