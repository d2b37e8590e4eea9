#include "receiver.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "housekeeper.hpp"

namespace inbox {

using std::chrono::milliseconds;

// Longest delay of tasks that are done between two calls of the source.
static constexpr milliseconds max_wait{200};
static constexpr milliseconds max_wait_for_workers{1000};

Receiver::Receiver(Shared& shared, Source& source, Dispatcher& dispatcher)
    : shared_(shared),
      source_(source),
      dispatcher_(dispatcher),
      pauses_(shared.options.retry_base, shared.options.retry_max) {}

void Receiver::run() {
    while (!shared_.stop.raised()) {
        try {
            if (!open_)
                open();
            if (open_)
                turn();
        } catch (const SourceError& error) {
            if (!error.transient())
                throw;
            open_ = false;
            if (shared_.stop.raised())
                return;
            shared_.log(Level::warning, source_.describe() + ": " + error.what());
            shared_.stop.wait(pauses_.next());
        }
    }
}

// Either stop() sees `opening_`, or this sees `stop`.
//
// A source that begins at the end makes this its position at once. Otherwise a restart before the
// first event would begin at a later end.
void Receiver::open() {
    opening_ = true;
    if (shared_.stop.raised())
        return;
    source_.open();
    opening_ = false;
    std::ranges::move(source_.moved_positions(), std::back_inserter(begin_));
    if (!begin_.empty()) {
        try {
            save_positions(shared_, begin_);
        } catch (const DatabaseError& error) {
            throw SourceError(std::string("cannot save where it begins: ") + error.what(), true);
        }
        begin_.clear();
    }
    open_ = true;
    if (std::exchange(opened_before_, true))
        shared_.counters.source_reconnects++;
}

void Receiver::stop() noexcept {
    if (opening_)
        source_.interrupt();
}

void Receiver::turn() {
    give_back(dispatcher_.take_held(Clock::now()));
    if (const auto recalled = source_.recall())
        give_back(dispatcher_.take_waiting(recalled));
    seek_if_asked();
    const std::size_t room = dispatcher_.room(max_wait);
    if (room == 0)
        return;
    std::vector<Delivery> deliveries = source_.receive(room, max_wait);
    pauses_.reset();
    shared_.counters.received += deliveries.size();
    dispatcher_.add(std::move(deliveries));
}

void Receiver::give_back(const std::vector<Delivery>& deliveries) {
    if (deliveries.empty())
        return;
    shared_.counters.nacked += deliveries.size();
    source_.nack(deliveries);
}

void Receiver::seek_if_asked() {
    std::optional<Time> to;
    {
        const std::lock_guard lock(mutex_);
        to = to_seek_;
    }
    std::vector<Delivery> left;
    if (!to || !dispatcher_.take_all(max_wait_for_workers, left))
        return;
    try {
        source_.seek(*to);
        const std::lock_guard lock(mutex_);
        sought_ = std::exchange(to_seek_, {});
    } catch (const SourceError& error) {
        give_back(left);
        if (error.transient())
            throw;
        shared_.log(Level::error, source_.describe() + " cannot seek: " + error.what());
        const std::lock_guard lock(mutex_);
        to_seek_ = {};  // wait for the next round of housekeeping
        return;
    }
    give_back(left);
}

bool Receiver::seek(Time to) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(sought_, {}) == to)
        return true;
    to_seek_ = to;
    return false;
}

}  // namespace inbox
