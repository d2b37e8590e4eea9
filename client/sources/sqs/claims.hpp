// What of a queue is ours for now: which messages wait to be handed out, which are in somebody's
// hands, which claims have to be extended, and what is to be deleted or given back. Knows neither
// network nor threads.
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
    enum class Change { remove, release, extend };  // release: it is visible to all again
    // What one request is to change.
    struct Batch {
        Change change;
        std::vector<std::string> handles;
        std::vector<outbox::Micros> until;  // of each: later there is no point in it
        outbox::Micros sent_at;
    };
    enum class Answer {
        done,
        failed,  // perhaps not the next time
        lost,    // the message is not ours any more
    };

    // `order`: messages with one ordering key come back in their order, as FIFO queues have it.
    Claims(bool order, outbox::Micros visibility) : order_(order), visibility_(visibility) {}

    void add(std::vector<Delivery> deliveries, outbox::Micros now);
    std::size_t buffered() const { return buffered_.size(); }
    std::vector<Delivery> take(std::size_t most);

    void ack(std::span<const Delivery> deliveries, outbox::Micros now);
    // Where order counts, also gives back what was received behind them and is not handed out.
    void nack(std::span<const Delivery> deliveries, outbox::Micros now);
    void give_back_all(outbox::Micros now);

    // What is to be sent now; nothing, if there is nothing. settle() with an answer for each
    // handle; none: the request failed.
    std::optional<Batch> next(outbox::Micros now);
    // Returns how many messages were lost.
    std::size_t settle(const Batch& batch, const std::vector<Answer>& answers, outbox::Micros now);
    // When next() will have something, if nothing else happens.
    outbox::Micros deadline() const;
    // Nothing is left to be deleted or given back.
    bool is_settled() const { return removals_.empty() && releases_.empty() && sent_ == 0; }
    std::size_t unsettled() const { return removals_.size() + releases_.size() + sent_; }

  private:
    using Due = std::multimap<outbox::Micros, std::string>;  // when, which handle
    struct Held {
        std::uint64_t number;  // in order of receipt
        outbox::Micros until;  // so long it is ours
        Due::iterator due;     // of its extension; end: one is under way
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
    std::map<std::string, Held> held_;  // by handle, the buffered ones as well
    Due due_;
    std::set<std::string> extending_;  // under way
    std::deque<Parting> removals_, releases_;
    std::size_t sent_ = 0;  // of both, under way
    bool releasing_ = false;
};

}  // namespace inbox::sqs
