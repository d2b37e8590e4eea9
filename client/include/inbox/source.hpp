// The interface of a source of events. The library has sources in <inbox/sources/...>. Derive from
// Source to write another.
//
// A source hands out deliveries, and keeps its claim on each of them until it is told to settle it:
// by extending leases from a thread of its own, or by keeping its connection. It survives the loss
// of its broker: after another open(), deliveries that were not settled are handed out again, here
// or to another consumer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

enum class Level { debug, info, warning, error };

// Receives log messages of the library. Called from any of its threads. Must not throw.
using Log = std::function<void(Level, const std::string& message)>;

// Writes warnings and errors to standard error, a line each, with the time in UTC.
void log_to_stderr(Level level, const std::string& message);

// A place in a subscription, or in a part of it: everything before it has been applied.
struct Position {
    std::string subscription;  // the name under which it is saved
    std::string message_id;
    Time published_at{};  // a later position has a later time, or it is not saved
    // By what the source recognizes the topic, stream or queue that message_id belongs to. Ids and
    // offsets of one that was made again begin again.
    std::string incarnation{};
};

// What a source does when it finds that what it reads was made again, or was cut back, since its
// position: begins with the first message that is there, or throws a SourceError that is not
// transient. Messages that come again are recognized within the deduplication window.
enum class OnRecreated { begin_again, stop };

// Events that can no longer be received, or an incarnation that has replaced another one.
struct Gap {
    std::string subscription;
    std::string why;            // a sentence for people
    std::uint64_t skipped = 0;  // number of events, at most
    bool recreated = false;
    std::string incarnation{};  // the new one; empty if it has no name
};

// Returns the saved positions of these subscriptions, without those that have none. Throws
// DatabaseError.
using LoadPositions = std::function<std::vector<Position>(const std::vector<std::string>&)>;

// Order of calls: set_log() and set_positions(), open(), receive() repeatedly, and interrupt() and
// close() at the end. After an exception of open() or receive(), open() is called again.
//
// Thread-safety: open(), receive() and recall() are called by one thread. ack(), nack(), seek() and
// the functions of positions are called by any thread, also while receive() waits. close() may be
// called while receive() waits, and ends that wait.
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

    // The consumer stops: a call of open() or receive() that waits for an answer of a broker, which
    // may never come, throws SourceError. Called by any thread, and followed by close().
    virtual void interrupt() noexcept {}

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

    // Returns the positions to save in the transaction that applies these deliveries, of which
    // there is at least one. By default the newest of them is the position of the subscription.
    virtual std::vector<Position> positions(std::span<const Delivery* const> deliveries);
    // Returns positions that have changed since the last call, to be saved by themselves. When
    // several transactions run at the same time, positions() may have returned earlier ones.
    virtual std::vector<Position> moved_positions() { return {}; }
    // For sources that compare what they find with what the consumer's database says.
    virtual void set_positions(LoadPositions) {}
    // Returns the gaps found since the last call, which the source has logged.
    virtual std::vector<Gap> gaps() { return {}; }

    // Returns which deliveries must be given back now, unless a handler has begun with them; nack()
    // is then called for them. Empty if none must.
    virtual std::function<bool(const Delivery&)> recall() { return {}; }

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

inline std::vector<Position> Source::positions(std::span<const Delivery* const> deliveries) {
    const Delivery* const newest = *std::ranges::max_element(
        deliveries, {}, [](const Delivery* delivery) { return delivery->published_at; });
    return {{subscription(), newest->message_id, newest->published_at, {}}};
}

}  // namespace inbox
