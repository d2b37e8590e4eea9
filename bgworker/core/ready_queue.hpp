// The events that may be sent now, in lanes: only events of one lane share a batch. Lanes take
// turns, batch by batch, so that none has to wait for another to be empty.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "event.hpp"

namespace outbox {

struct Lane {
    std::string name;
    std::deque<Event*> events;          // that may be sent now
    std::size_t members = 0;            // events that belong to it, whatever they wait for
    std::size_t batches_in_flight = 0;  // the pipeline's
    bool has_turn = false;
};

class ReadyQueue {
  public:
    // Lanes that nobody belongs to are kept up to this many.
    static constexpr std::size_t max_idle_lanes = 64;

    // An event belongs to a lane from join() to leave().
    void join(Event& event, std::string_view lane);
    void leave(Event& event) noexcept;

    bool empty() const noexcept { return size_ == 0; }
    void push_back(Event& event);
    void push_front(Event& event);

    // As many turns as every lane that has events needs to have one.
    std::size_t turns() const noexcept { return turns_.size(); }
    // The lane whose turn it is; nullptr: nothing is ready.
    Lane* turn() noexcept;
    void pop_front(Lane& lane) noexcept;
    // A batch was made: the turn passes to the next lane.
    void end_turn();

    template <class Predicate>
    void erase_if(Predicate predicate);

  private:
    void give_turn(Lane& lane);
    void drop_if_idle(Lane& lane) noexcept;

    struct NameHash : std::hash<std::string_view> {
        using is_transparent = void;
    };
    std::unordered_map<std::string, std::unique_ptr<Lane>, NameHash, std::equal_to<>> lanes_;
    std::deque<Lane*> turns_;  // those with events, and some that have become empty
    Lane* last_ = nullptr;     // joined; the next event is likely to join it too
    std::size_t size_ = 0;
};

template <class Predicate>
void ReadyQueue::erase_if(Predicate predicate) {
    for (Lane* lane : turns_)
        size_ -= std::erase_if(lane->events, predicate);
}

}  // namespace outbox
