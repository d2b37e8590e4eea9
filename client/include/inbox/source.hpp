// Where events come from. Sources are in <inbox/sources/...>; anybody can write another.
//
// A source hands out deliveries, keeps its claim on each (by extending leases, from a thread or on
// its connection) until it is told what became of it, and survives the loss of what is behind it:
// after open() has been called again it hands out what was not settled, to us or to others.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

enum class Level { debug, info, warning, error };
// Called from any thread of the library; must not throw.
using Log = std::function<void(Level, const std::string& message)>;

// The order of calls: open, then receive from one thread, while ack, nack and seek may come from
// any; then close, which ends a receive that is under way. After an exception: open again.
class Source {
  public:
    virtual ~Source() = default;

    // What offsets are saved under: with one name a consumer may have several subscriptions.
    virtual std::string subscription() const = 0;
    // What people are told; no secrets.
    virtual std::string describe() const { return subscription(); }

    // Connects. Throws SourceError.
    virtual void open() = 0;

    // Waits at most `wait` for the next deliveries, in the order in which those of a key are to be
    // handled; none: there was nothing, which is no error. Throws SourceError.
    virtual std::vector<Delivery> receive(std::size_t max_messages,
                                          std::chrono::milliseconds wait) = 0;

    // These were applied and committed: they need not come again. May work in the background; what
    // cannot be acknowledged comes again, and is found to be applied already.
    virtual void ack(std::span<const Delivery> deliveries) = 0;

    // These were not applied: they are to come again. Those of a key are given in their order.
    virtual void nack(std::span<const Delivery> deliveries) = 0;

    // Goes back, or forward, to what was published at that time. What was handed out before is
    // nacked afterwards, if the source still knows it. Throws SourceError, not transient, when the
    // source cannot.
    virtual void seek(Time to) = 0;

    // Sends what acknowledgements are still to be sent, gives back what was not settled, and
    // disconnects; waits at most so long.
    virtual void close(std::chrono::milliseconds limit) noexcept = 0;

    // Where the source says what goes wrong behind the scenes. Set before open().
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
