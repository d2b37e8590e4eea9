// What is to be said to the service about messages: acknowledged, given back, extended. Gathered
// for a moment, cut into requests that are not too large, and sent again when that may help.
//
// Requests that change deadlines go one after the other, because one that extends must not overtake
// one that was sent before and gives back; so do acknowledgements, because meanwhile more gather.
//
// Times are given by the caller. Not thread-safe.
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
    int attempts = 0;    // that failed
    SteadyTime since{};  // when the first was made
};

class Settlements {
  public:
    // One request at a time of each.
    static constexpr std::size_t lanes = 2;
    static std::size_t lane(Action action) { return action == Action::ack ? 0 : 1; }

    void add(Action action, const std::string& ack_id, SteadyTime now);

    // When next() will have something, if nothing changes; max(): never.
    SteadyTime due() const;
    // A request to send. Its kind has no other until done() was called.
    std::optional<Batch> next(SteadyTime now);
    void done(Action action) { busy_[lane(action)] = false; }

    // These of its messages may work later. `part`: a random number from 0 to 1. False: that was
    // the last attempt.
    bool again(Batch batch, SteadyTime now, double part);

    // Everything is due at once.
    void hurry(SteadyTime now);
    bool idle() const;
    void clear();

    static constexpr std::size_t max_ids = 1000;
    // The service takes 512 KiB; a part of it is the name of the subscription.
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
