// The messages that nobody has settled yet: how long a lease is, and when all are to be extended.
//
// Times are given by the caller. Not thread-safe.
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

// How long messages took until they were acknowledged. Old ones count less and less.
class AckTimes {
  public:
    void add(Duration time);
    // What 99 % did not exceed; 0: nothing is known.
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

    // With exactly-once delivery leases are longer: one that is lost costs more.
    void set_exactly_once(bool exactly_once) { exactly_once_ = exactly_once; }

    // How long a lease that is taken or extended now is to last.
    std::chrono::seconds deadline() const;

    // A message that came at `now` and is leased from then. `part`: a random number from 0 to 1.
    void add(const std::string& ack_id, SteadyTime now, double part);
    // It was acknowledged: that counts for deadline(). False: it is not held.
    bool acked(const std::string& ack_id, SteadyTime now);
    // It was given back, or is nobody's any more.
    bool remove(const std::string& ack_id) { return held_.erase(ack_id) > 0; }

    bool has(const std::string& ack_id) const { return held_.contains(ack_id); }
    std::size_t size() const { return held_.size(); }
    std::vector<std::string> all() const;  // in the order in which they came
    void clear();

    // When the leases are to be extended; max(): there are none.
    SteadyTime next_round() const { return next_round_; }
    struct Round {
        std::vector<std::string> extend;
        std::size_t expired = 0;  // not extended any more, but they may still be acknowledged
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
