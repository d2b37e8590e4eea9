// The leases of messages that are not settled: how long they are, and when to extend them.
//
// The caller gives the times. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace inbox::pubsub {

using SteadyTime = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// The time that messages took to be acknowledged. Old values count less and less.
class AckTimes {
  public:
    void add(Duration time);
    // Returns the time that 99 % did not exceed, or 0 if none is known.
    std::chrono::seconds p99() const;

  private:
    static constexpr std::size_t longest = 600;
    std::array<unsigned, longest + 1> counts_{};  // by seconds, rounded up
    unsigned total_ = 0;
};

struct LeaseLimits {
    std::chrono::seconds min_deadline{10};
    std::chrono::seconds max_deadline{600};
    std::chrono::seconds max_lease{3600};
};

class Leases {
  public:
    explicit Leases(LeaseLimits limits) : limits_(limits) {}

    // Makes leases longer: with exactly-once delivery, losing one costs more.
    void set_exactly_once(bool exactly_once) { exactly_once_ = exactly_once; }

    // Returns the length of a lease that is taken or extended now.
    std::chrono::seconds deadline() const;

    // Adds a message whose lease starts at `now`. `part` is a random number from 0 to 1.
    void add(const std::string& ack_id, SteadyTime now, double part);
    // Ends a lease by an acknowledgement, whose time counts for deadline(). Returns false if there
    // is no such lease.
    bool acked(const std::string& ack_id, SteadyTime now);
    // Ends a lease because its message was given back or lost.
    bool remove(const std::string& ack_id) { return held_.erase(ack_id) > 0; }

    bool has(const std::string& ack_id) const { return held_.contains(ack_id); }
    std::size_t size() const { return held_.size(); }
    std::vector<std::string> all() const;  // in the order of arrival
    void clear();

    // Time of the next round of extensions, or max() if there are no leases.
    SteadyTime next_round() const { return next_round_; }
    struct Round {
        std::vector<std::string> extend;
        std::size_t expired = 0;  // no longer extended, but they may still be acknowledged
    };
    Round begin_round(SteadyTime now, double part);

  private:
    void plan_round(SteadyTime now, double part);

    struct Lease {
        SteadyTime since;
        std::uint64_t number;
        bool expired = false;
    };
    LeaseLimits limits_;
    bool exactly_once_ = false;
    AckTimes ack_times_;
    std::unordered_map<std::string, Lease> held_;
    std::uint64_t next_number_ = 0;
    SteadyTime next_round_ = SteadyTime::max();
};

}  // namespace inbox::pubsub
