// The entries of one stream that this source holds: those waiting to be handed out, those handed
// out, and those whose acknowledgement is not confirmed. It uses neither network nor threads.
//
// Order. Entries are handed out in the order of their ids. Redis has no command to give an entry
// back: it stays pending for this consumer. So an entry that is given back waits here again, before
// later ones, and keeps its claim.
//
// Entries that nobody else can get, because they have left the stream or its group, stay until they
// are acknowledged. A group that is made again may give their ids to other entries, which belong to
// the next generation.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
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
    std::size_t waiting() const { return left_.size() + waiting_.size(); }
    std::size_t waiting_bytes() const { return waiting_bytes_; }
    std::size_t held() const { return held_.size(); }
    bool holds(outbox::StreamId id) const { return held_.contains(id); }
    // Moves at most `most` deliveries to `taken`.
    void take(std::size_t most, std::vector<Delivery>& taken);

    // The number that handles of entries contain.
    std::uint64_t generation() const { return generation_; }
    // Of this generation.
    void ack(outbox::StreamId id);
    // An acknowledgement of an earlier generation has nothing to do.
    void ack(std::uint64_t generation, outbox::StreamId id) {
        if (generation == generation_)
            ack(id);
    }
    void nack(std::uint64_t generation, outbox::StreamId id, const Delivery& delivery);

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
    // Another consumer has these entries.
    void lost(const Ids& ids);
    // Nobody else can get these entries. Their claims are not extended any more.
    void keep(const Ids& ids);
    // Number of entries that only this process has, as far as it has not handed them out.
    std::size_t last_copies() const { return left_.size() + kept_.size(); }
    // The group has gone, with all claims and acknowledgements.
    void begin_generation();

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
    std::set<outbox::StreamId> kept_;
    std::uint64_t generation_ = 1;
    // Entries of earlier generations that wait to be handed out.
    std::map<std::pair<std::uint64_t, outbox::StreamId>, Delivery> left_;
    std::size_t waiting_bytes_ = 0;
    std::deque<outbox::StreamId> acks_;
    std::set<outbox::StreamId> unconfirmed_;  // acknowledgements, sent or not
};

}  // namespace inbox::redis
