// The lanes of a destination and their events. Only events of one lane share a batch. A lane has
// fresh events, which may be sent now, in order, and suspects, each with the time of its next
// attempt. Lanes take turns, batch by batch, so that none waits until another is empty.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/pipeline/health.hpp"
#include "core/pipeline/tracked.hpp"

namespace outbox {

// Events that failed least go first, and among these the one that has waited longest. So an event
// that failed once by chance does not wait behind events that always fail.
struct BySuspicion {
    bool operator()(const Tracked* a, const Tracked* b) const noexcept {
        const bool a_often = often(*a), b_often = often(*b);
        if (a_often != b_often)
            return b_often;
        return a->again_at != b->again_at ? a->again_at < b->again_at : a->turn < b->turn;
    }
    static bool often(const Tracked& event) noexcept {
        return event.failures > 1 || event.event->has_failed;
    }
};

struct Lane {
    Lane(std::string_view name_of_lane, const LaneHealth& health_at_first)
        : name(name_of_lane), health(health_at_first) {}

    bool is_overtaken(std::uint64_t request) const noexcept { return overtaken_to > request; }

    std::string name;
    LaneHealth health;
    std::string last_error;
    std::deque<Tracked*> fresh;
    std::set<Tracked*, BySuspicion> suspects;
    std::size_t members = 0;          // all events of the lane, sent or not
    std::size_t fresh_in_flight = 0;  // requests with fresh events, without those that hang
    std::size_t in_flight = 0;        // all requests
    std::size_t hanging = 0;          // fresh requests that hang
    std::uint64_t overtaken_to = 0;   // number of the last request that was confirmed
    bool has_turn = false;
    bool down_by_itself = false;  // the destination said that this lane is unavailable
};

class Lanes {
  public:
    // Lanes without events are kept up to this number.
    static constexpr std::size_t max_idle_lanes = 64;

    // `make_health` makes the initial state of a new lane.
    explicit Lanes(std::function<LaneHealth()> make_health)
        : make_health_(std::move(make_health)) {}

    // An event belongs to a lane from join() to leave().
    void join(Tracked& event, std::string_view lane);
    void leave(Tracked& event) noexcept;

    // True if any lane has fresh events.
    bool any_fresh() const noexcept { return fresh_ > 0; }
    // Number of suspects that wait for their next attempt.
    std::size_t suspects() const noexcept { return suspects_; }
    void push_back(Tracked& event);
    void push_front(Tracked& event);
    void pop_front(Lane& lane) noexcept;
    void add_suspect(Tracked& event);
    void remove_suspect(Tracked& event) noexcept;

    // Number of turns after which every lane with fresh events has had one.
    std::size_t turns() const noexcept { return turns_.size(); }
    // Returns the lane whose turn it is, or nullptr if there are no fresh events.
    Lane* turn() noexcept;
    // Passes the turn to the next lane.
    void end_turn();

    template <class Do>
    void for_each(Do&& what) const {
        for (const auto& entry : lanes_)
            what(*entry.second);
    }
    template <class Predicate>
    bool any(Predicate&& predicate) const {
        return std::any_of(lanes_.begin(), lanes_.end(),
                           [&](const auto& entry) { return predicate(*entry.second); });
    }
    std::size_t count() const noexcept { return lanes_.size(); }
    // Removes matching events, fresh ones and suspects.
    template <class Predicate>
    void erase_if(Predicate predicate);

  private:
    void give_turn(Lane& lane);
    void drop_if_idle(Lane& lane) noexcept;

    struct NameHash : std::hash<std::string_view> {
        using is_transparent = void;
    };
    const std::function<LaneHealth()> make_health_;
    std::unordered_map<std::string, std::unique_ptr<Lane>, NameHash, std::equal_to<>> lanes_;
    std::deque<Lane*> turns_;  // lanes with fresh events, and some that no longer have any
    Lane* last_ = nullptr;     // the lane joined last; the next event is likely to join it too
    std::size_t fresh_ = 0;
    std::size_t suspects_ = 0;
};

template <class Predicate>
void Lanes::erase_if(Predicate predicate) {
    for (const auto& entry : lanes_) {
        fresh_ -= std::erase_if(entry.second->fresh, predicate);
        suspects_ -= std::erase_if(entry.second->suspects, predicate);
    }
}

}  // namespace outbox
