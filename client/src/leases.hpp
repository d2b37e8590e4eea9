// The leases of outbox.fetch() that a PullSource has, and the settlements to send about them.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

// A settlement to send to the database. The order of settlements matters.
struct Settlement {
    std::string token;
    // Ids of nacked events, those of a key in order. If it is empty, the lease ends, and all events
    // under it that were not nacked are settled.
    std::vector<std::string> nacked;
};

// Not thread-safe.
class Leases {
  public:
    void add(const std::string& token, std::size_t events) { open_[token] += events; }
    // Forgets a lease that was lost: other consumers have its events now.
    void forget(const std::string& token) { open_.erase(token); }
    void forget_all();

    // Ignores handles that are not known, because their leases were lost.
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);

    std::vector<std::string> tokens() const;
    std::deque<Settlement>& settlements() { return settlements_; }

  private:
    void settle(const std::string& token, std::size_t events);

    std::unordered_map<std::string, std::size_t> open_;  // by token: number of events not settled
    std::deque<Settlement> settlements_;
};

}  // namespace inbox
