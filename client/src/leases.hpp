// What a PullSource holds: leases of outbox.fetch(), and what is to be said about them.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

// To be told to the database, in this order.
struct Settlement {
    std::string token;
    // Refused, those of a key in their order. None: everything under the lease that was not refused
    // is settled, and the lease ends.
    std::vector<std::string> nacked;
};

// Not for several threads at once.
class Leases {
  public:
    void add(const std::string& token, std::size_t events) { open_[token] += events; }
    // Others have what was under it.
    void forget(const std::string& token) { open_.erase(token); }
    void forget_all();

    // Handles that are not known are passed over: their leases were lost.
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);

    std::vector<std::string> tokens() const;
    std::deque<Settlement>& settlements() { return settlements_; }

  private:
    void settle(const std::string& token, std::size_t events);

    std::unordered_map<std::string, std::size_t> open_;  // events not settled, by token
    std::deque<Settlement> settlements_;
};

}  // namespace inbox
