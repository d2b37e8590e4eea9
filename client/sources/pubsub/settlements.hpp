// Settlements to send to the service: messages to acknowledge, to give back, and to extend. They
// are gathered for a moment, cut into requests of limited size, and sent again if that may help.
//
// Nacks and extensions share one lane, which has one request at a time: an extension must not
// overtake an earlier nack of the same message. Acknowledgements are sent one request at a time
// too, because more of them gather meanwhile.
//
// The caller gives the times. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pubsub/leases.hpp"

namespace inbox::pubsub {

enum class Action { ack, nack, extend };

struct Batch {
    Action action = Action::ack;
    std::vector<std::string> ack_ids{};
    int attempts = 0;    // failed ones
    SteadyTime since{};  // time of the first attempt
};

class Settlements {
  public:
    // Each lane has at most one request at a time.
    static constexpr std::size_t lanes = 2;
    static std::size_t lane(Action action) { return action == Action::ack ? 0 : 1; }

    void add(Action action, const std::string& ack_id, SteadyTime now);

    // Time at which next() will return a request if nothing changes, or max().
    SteadyTime due() const;
    // Returns a request to send, if any. Its lane has no other one until done() is called.
    std::optional<Batch> next(SteadyTime now);
    void done(Action action) { busy_[lane(action)] = false; }

    // Schedules messages of a failed request for another attempt. `part` is a random number from 0
    // to 1. Returns false if there is no further attempt.
    bool again(Batch batch, SteadyTime now, double part);

    // Makes everything due at once.
    void hurry(SteadyTime now);
    bool idle() const;
    void clear();

    static constexpr std::size_t max_ids = 1000;
    // The service accepts 512 KiB, which includes the name of the subscription.
    static constexpr std::size_t max_bytes = 500'000;

  private:
    struct Waiting {
        std::string ack_id;
        SteadyTime due;
    };
    std::deque<Waiting>& waiting(Action action) { return waiting_[static_cast<int>(action)]; }
    std::optional<Batch> take(Action action, SteadyTime now);

    std::array<std::deque<Waiting>, 3> waiting_;
    std::multimap<SteadyTime, Batch> later_;
    std::array<bool, lanes> busy_{};
};

}  // namespace inbox::pubsub
