// The entries of one stream that this source holds: those waiting to be handed out, those handed
// out, and those whose acknowledgement is not confirmed. It uses neither network nor threads.
//
// Order. Entries are handed out in the order of their ids. Redis has no command to give an entry
// back: it stays pending for this consumer. So an entry that is given back waits here again, before
// later ones, and keeps its claim.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "core/clock.hpp"
#include "inbox/event.hpp"
#include "net/redis_stream_id.hpp"

namespace inbox::redis {

class Claims {
  public:
    using Ids = std::vector<outbox::StreamId>;

    // A claim must be extended after this time.
    explicit Claims(outbox::Micros extension_interval) : interval_(extension_interval) {}

    // Adds an entry. If it is held already, Redis has extended its claim by sending it again.
    void add(outbox::StreamId id, Delivery delivery, outbox::Micros now);
    std::size_t waiting() const { return waiting_.size(); }
    std::size_t waiting_bytes() const { return waiting_bytes_; }
    std::size_t held() const { return held_.size(); }
    // Moves at most `most` deliveries to `taken`.
    void take(std::size_t most, std::vector<Delivery>& taken);

    void ack(outbox::StreamId id);
    void nack(outbox::StreamId id, const Delivery& delivery);

    // Returns the ids to acknowledge, at most `most`, the oldest first. Each must come back by
    // confirmed() or again().
    Ids next_acks(std::size_t most);
    void confirmed(const Ids& ids);
    void again(const Ids& ids);
    bool has_acks() const { return !acks_.empty(); }

    // Returns the ids of claims to extend now. Each must come back by extended() or lost(). It is
    // unknown when Redis extends a claim, except that it is before the answer. So the next interval
    // begins when the answer has arrived.
    Ids next_extensions(std::size_t most, outbox::Micros now);
    void extended(const Ids& ids, outbox::Micros now);
    outbox::Micros next_extension() const;
    // The shortest time since an id of next_extensions() arrived or was last extended.
    outbox::Micros least_age() const { return interval_ - early(); }
    // Another consumer has these entries, or they have left the stream.
    void lost(const Ids& ids);

    // Forgets all entries that are not acknowledged, and returns their ids.
    Ids give_back_all();

  private:
    using Due = std::multimap<outbox::Micros, outbox::StreamId>;

    void forget(outbox::StreamId id);
    void set_due(outbox::StreamId id, Due::iterator& due, outbox::Micros now);
    // Claims that are due within this time are extended together with one that is due.
    outbox::Micros early() const { return interval_ / 10; }

    const outbox::Micros interval_;
    // Waiting and handed out; end() while an extension is under way.
    std::map<outbox::StreamId, Due::iterator> held_;
    Due due_;
    std::map<outbox::StreamId, Delivery> waiting_;
    std::size_t waiting_bytes_ = 0;
    std::deque<outbox::StreamId> acks_;
    std::set<outbox::StreamId> unconfirmed_;  // acknowledgements, sent or not
};

}  // namespace inbox::redis
