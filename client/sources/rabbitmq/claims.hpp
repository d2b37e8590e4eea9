// The messages of a channel that this source holds: those waiting to be handed out, those handed
// out, and those that are settled and not acknowledged yet. It uses neither network nor threads.
//
// A message that is given back waits here, before all that came later, and is handed out again.
// RabbitMQ cannot delay a message. One that is requeued comes after others of its key, and each
// time uses up one of the attempts that a quorum queue allows. The broker gets back what is here
// when the channel ends.
//
// Tags are valid for one channel only. A delivery that was handed out before becomes stale: the
// broker sends it again, so settling it changes nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "inbox/event.hpp"

namespace inbox::rabbitmq {

class Claims {
  public:
    struct Ack {
        std::uint64_t tag = 0;
        bool multiple = false;  // also for all earlier ones
        bool operator==(const Ack&) const = default;
    };

    // Tags start again from 1, and deliveries that were handed out are stale from now on.
    void begin_channel();
    std::uint64_t channel() const { return channel_; }
    // Sets the handle.
    void add(std::uint64_t tag, Delivery delivery);
    // Adds a message that need not be handed out.
    void add_settled(std::uint64_t tag) { settled_.insert(tag); }

    std::vector<Delivery> take(std::size_t most);
    bool is_stale(const Delivery& delivery) const;
    // Returns true if it was handed out over this channel and has not been settled.
    bool is_out(const Delivery& delivery) const;
    void ack(std::span<const Delivery> deliveries);
    // Deliveries of one ordering key must be in their order.
    void nack(std::span<const Delivery> deliveries);

    // Returns the acknowledgements to send, as few as possible.
    std::vector<Ack> take_acks();
    bool has_acks() const { return !settled_.empty(); }

    std::size_t waiting() const { return waiting_.size(); }
    std::size_t outstanding() const { return held_.size() - waiting_.size(); }
    // Messages that the broker still counts as not acknowledged.
    std::size_t unacknowledged() const { return held_.size() + settled_.size(); }

  private:
    enum class State : unsigned char { waiting, out };
    struct Waiting {
        std::uint64_t tag;
        Delivery delivery;
    };
    std::map<std::uint64_t, State>::iterator find_out(const Delivery& delivery);

    std::uint64_t channel_ = 0;
    std::deque<Waiting> waiting_;
    std::map<std::uint64_t, State> held_;  // by tag
    std::set<std::uint64_t> settled_;      // tags
};

}  // namespace inbox::rabbitmq
