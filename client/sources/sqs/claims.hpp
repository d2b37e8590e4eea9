// The messages of a queue that this source has claimed: those waiting to be handed out, those
// handed out, and the changes to send: extensions, deletions and releases. Knows neither network
// nor threads.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "inbox/event.hpp"

namespace inbox::sqs {

class Claims {
  public:
    // Release makes a message visible to all consumers again.
    enum class Change { remove, release, extend };
    // Changes for one request.
    struct Batch {
        Change change;
        std::vector<std::string> handles;
        std::vector<outbox::Micros> until;  // for each: time after which the change is useless
        outbox::Micros sent_at;
    };
    enum class Answer {
        done,
        failed,  // another attempt may succeed
        lost,    // another consumer may have the message
    };

    // With `order`, messages of one ordering key come back in their order, as in FIFO queues.
    Claims(bool order, outbox::Micros visibility) : order_(order), visibility_(visibility) {}

    void add(std::vector<Delivery> deliveries, outbox::Micros now);
    std::size_t buffered() const { return buffered_.size(); }
    std::vector<Delivery> take(std::size_t most);

    void ack(std::span<const Delivery> deliveries, outbox::Micros now);
    // With `order`, also gives back messages that were received behind these and not handed out.
    void nack(std::span<const Delivery> deliveries, outbox::Micros now);
    void give_back_all(outbox::Micros now);

    // Returns changes to send now, if any. Call settle() with an answer for each handle, or without
    // answers if the request failed.
    std::optional<Batch> next(outbox::Micros now);
    // Returns the number of messages that were lost.
    std::size_t settle(const Batch& batch, const std::vector<Answer>& answers, outbox::Micros now);
    // Time at which next() will return changes if nothing else happens.
    outbox::Micros deadline() const;
    // True if nothing is left to be deleted or given back.
    bool is_settled() const { return removals_.empty() && releases_.empty() && sent_ == 0; }
    std::size_t unsettled() const { return removals_.size() + releases_.size() + sent_; }

  private:
    using Due = std::multimap<outbox::Micros, std::string>;  // time and handle
    struct Held {
        std::uint64_t number;  // in the order of receipt
        outbox::Micros until;  // end of the claim
        Due::iterator due;     // of its extension; end() while one is under way
    };
    struct Parting {
        std::string handle;
        outbox::Micros until;
    };

    Parting part(const std::string& handle, outbox::Micros now);
    Batch partings(Change change, std::deque<Parting>& queue, outbox::Micros now);
    Batch extensions(outbox::Micros now);
    std::size_t settle_extension(const std::string& handle, Answer answer, const Batch& batch,
                                 outbox::Micros now);

    bool order_;
    outbox::Micros visibility_;
    std::uint64_t received_ = 0;
    std::deque<Delivery> buffered_;
    std::map<std::string, Held> held_;  // by handle, with those waiting
    Due due_;
    std::set<std::string> extending_;  // extensions under way
    std::deque<Parting> removals_, releases_;
    std::size_t sent_ = 0;  // deletions and releases under way
    bool releasing_ = false;
};

}  // namespace inbox::sqs
