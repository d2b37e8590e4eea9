#include "ready_queue.hpp"

#include <utility>

namespace outbox {

void ReadyQueue::join(Event& event, std::string_view lane) {
    if (last_ == nullptr || last_->name != lane) {
        std::unique_ptr<Lane>& entry = lanes_[std::string(lane)];
        if (entry == nullptr) {
            entry = std::make_unique<Lane>();
            entry->name = lane;
        }
        last_ = entry.get();
    }
    event.lane = last_;
    event.lane->members++;
}

void ReadyQueue::leave(Event& event) noexcept {
    Lane& lane = *std::exchange(event.lane, nullptr);
    lane.members--;
    drop_if_idle(lane);
}

void ReadyQueue::drop_if_idle(Lane& lane) noexcept {
    if (lane.members > 0 || lane.has_turn || lanes_.size() <= max_idle_lanes)
        return;
    if (last_ == &lane)
        last_ = nullptr;
    lanes_.erase(lanes_.find(lane.name));
}

void ReadyQueue::give_turn(Lane& lane) {
    if (!lane.has_turn)
        turns_.push_back(&lane);
    lane.has_turn = true;
}

void ReadyQueue::push_back(Event& event) {
    give_turn(*event.lane);
    event.lane->events.push_back(&event);
    size_++;
}

void ReadyQueue::push_front(Event& event) {
    give_turn(*event.lane);
    event.lane->events.push_front(&event);
    size_++;
}

Lane* ReadyQueue::turn() noexcept {
    while (!turns_.empty() && turns_.front()->events.empty()) {
        Lane& lane = *turns_.front();
        turns_.pop_front();
        lane.has_turn = false;
        drop_if_idle(lane);
    }
    return turns_.empty() ? nullptr : turns_.front();
}

void ReadyQueue::pop_front(Lane& lane) noexcept {
    lane.events.pop_front();
    size_--;
}

void ReadyQueue::end_turn() {
    if (turns_.size() > 1) {
        turns_.push_back(turns_.front());
        turns_.pop_front();
    }
}

}  // namespace outbox
