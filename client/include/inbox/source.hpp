// The interface of a source of events. The library has sources in <inbox/sources/...>. Derive from
// Source to write another.
//
// A source hands out deliveries, and keeps its claim on each of them until it is told to settle it:
// by extending leases from a thread of its own, or by keeping its connection. It survives the loss
// of its broker: after another open(), deliveries that were not settled are handed out again, here
// or to another consumer.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

enum class Level { debug, info, warning, error };

// Receives log messages of the library. Called from any of its threads. Must not throw.
using Log = std::function<void(Level, const std::string& message)>;

// Order of calls: set_log(), open(), receive() repeatedly, and close() at the end. After an
// exception of open() or receive(), open() is called again.
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
    // knows. If a delivery cannot be acknowledged it comes again, and is then recognized as a
    // duplicate.
    virtual void ack(std::span<const Delivery> deliveries) = 0;

    // These were not applied and must come again. Those of one ordering key are in their order.
    virtual void nack(std::span<const Delivery> deliveries) = 0;

    // Moves back or forward to the events published at this time. nack() is called afterwards for
    // deliveries that were handed out before. Throws SourceError, not transient, if the source
    // cannot seek.
    virtual void seek(Time to) = 0;

    // Sends the remaining acknowledgements, gives back deliveries that were not settled, and
    // disconnects. Waits for at most `limit`.
    virtual void close(std::chrono::milliseconds limit) noexcept = 0;

    // Sets the log for failures between calls. Must be called before open().
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
