// The lanes of a destination and the events in them: only events of one lane share a batch. A lane
// has fresh events, which may be sent now, in their order; and suspects, each with the time of its
// next attempt. Lanes take turns, batch by batch, so that none has to wait for another to be empty.
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

// Those that failed least go first, and of these the one that has waited longest: an event that
// failed once by chance does not wait behind others that always fail.
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
    std::size_t members = 0;          // events that belong to it, whatever they wait for
    std::size_t fresh_in_flight = 0;  // requests; those that hang are not counted
    std::size_t in_flight = 0;        // all requests
    std::size_t hanging = 0;          // fresh requests that hang
    std::uint64_t overtaken_to = 0;   // the last request that was confirmed, by number
    bool has_turn = false;
    bool down_by_itself = false;  // the destination has said that it is the lane
};

class Lanes {
  public:
    // Lanes that nobody belongs to are kept up to this many.
    static constexpr std::size_t max_idle_lanes = 64;

    // `make_health`: of a lane that nothing is known of yet.
    explicit Lanes(std::function<LaneHealth()> make_health)
        : make_health_(std::move(make_health)) {}

    // An event belongs to a lane from join() to leave().
    void join(Tracked& event, std::string_view lane);
    void leave(Tracked& event) noexcept;

    // Something is fresh.
    bool any_fresh() const noexcept { return fresh_ > 0; }
    // Suspects that wait for an attempt.
    std::size_t suspects() const noexcept { return suspects_; }
    void push_back(Tracked& event);
    void push_front(Tracked& event);
    void pop_front(Lane& lane) noexcept;
    void add_suspect(Tracked& event);
    void remove_suspect(Tracked& event) noexcept;

    // As many turns as every lane that has fresh events needs to have one.
    std::size_t turns() const noexcept { return turns_.size(); }
    // The lane whose turn it is; nullptr: nothing is fresh.
    Lane* turn() noexcept;
    // The turn passes to the next lane.
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
    // Takes events out that are fresh or suspects.
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
    std::deque<Lane*> turns_;  // those with fresh events, and some that have none any more
    Lane* last_ = nullptr;     // joined; the next event is likely to join it too
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
