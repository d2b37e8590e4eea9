// The messages of a consumer that this source holds: those waiting to be handed out, those handed
// out, and the commands to send about them. It uses neither network nor threads.
//
// Order. The server sends messages in order, but one that was given back comes again after later
// ones. So the source remembers which messages of a key it has given back. Until the first of them
// is there again, it also gives back what arrives of this key. It stops waiting after a time,
// because the message may have gone to another process, or left the stream.
//
// When the consumer was made again, nobody else can get the messages that are held, and commands
// about them would meet other messages. They stay until they are acknowledged.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "inbox/event.hpp"

namespace inbox::nats {

class Claims {
  public:
    struct Command {
        std::string subject;  // of acknowledgements of the message
        std::string body;
        bool settles = false;  // otherwise it asks for more time
    };

    // `ack_wait` is the time after which the server sends a message again.
    void set_ack_wait(outbox::Micros ack_wait) { ack_wait_ = ack_wait; }

    // Adds a message that has arrived.
    void add(Delivery delivery, outbox::Micros now);
    std::size_t buffered() const { return buffered_.size(); }
    std::size_t buffered_bytes() const { return buffered_bytes_; }
    std::vector<Delivery> take(std::size_t most);

    void ack(std::span<const Delivery> deliveries);
    // Also gives back messages of these keys that were not handed out.
    void nack(std::span<const Delivery> deliveries, outbox::Micros now);
    void give_back_all();
    void consumer_was_replaced();

    // Returns the commands to send now.
    std::vector<Command> next(outbox::Micros now);
    // Takes back commands that could not be sent, or have no answer.
    void again(std::vector<Command> commands);
    // Time at which next() will return commands if nothing else happens.
    outbox::Micros deadline() const;
    bool has_commands() const { return !commands_.empty(); }
    std::size_t held() const { return held_.size(); }

  private:
    using Due = std::multimap<outbox::Micros, std::uint64_t>;  // time and sequence
    struct Held {
        std::string handle;  // of the last time it was delivered
        Due::iterator due;
    };

    bool must_wait(const std::string& key, std::uint64_t sequence, outbox::Micros now);
    void give_back(const Delivery& delivery, outbox::Micros now);
    void forget_awaited(outbox::Micros now);
    bool is_kept(const Delivery& delivery) const;
    std::string part(std::uint64_t sequence, const std::string& handle);

    outbox::Micros ack_wait_ = outbox::seconds(30);
    std::deque<Delivery> buffered_;
    std::size_t buffered_bytes_ = 0;
    std::map<std::uint64_t, Held> held_;  // by sequence, with those waiting
    Due due_;
    // Messages of an earlier consumer, by Place::id(). Nothing is sent about them.
    std::set<std::pair<std::uint64_t, std::int64_t>> kept_;
    std::deque<Command> commands_;
    // Messages that were given back, by key and sequence, and until when they are waited for.
    std::map<std::string, std::map<std::uint64_t, outbox::Micros>> awaited_;
};

}  // namespace inbox::nats
