#include "core/pipeline/lanes.hpp"

#include <utility>

namespace outbox {

void Lanes::join(Tracked& event, std::string_view lane) {
    if (last_ == nullptr || last_->name != lane) {
        std::unique_ptr<Lane>& entry = lanes_[std::string(lane)];
        if (entry == nullptr)
            entry = std::make_unique<Lane>(lane, make_health_());
        last_ = entry.get();
    }
    event.lane = last_;
    event.lane->members++;
}

void Lanes::leave(Tracked& event) noexcept {
    Lane& lane = *std::exchange(event.lane, nullptr);
    lane.members--;
    drop_if_idle(lane);
}

void Lanes::drop_if_idle(Lane& lane) noexcept {
    if (lane.members > 0 || lane.in_flight > 0 || lane.has_turn || lanes_.size() <= max_idle_lanes)
        return;
    if (last_ == &lane)
        last_ = nullptr;
    lanes_.erase(lanes_.find(lane.name));
}

void Lanes::give_turn(Lane& lane) {
    if (!lane.has_turn)
        turns_.push_back(&lane);
    lane.has_turn = true;
}

void Lanes::push_back(Tracked& event) {
    give_turn(*event.lane);
    event.place = Tracked::Place::ready;
    event.lane->fresh.push_back(&event);
    fresh_++;
}

void Lanes::push_front(Tracked& event) {
    give_turn(*event.lane);
    event.place = Tracked::Place::ready;
    event.lane->fresh.push_front(&event);
    fresh_++;
}

void Lanes::pop_front(Lane& lane) noexcept {
    lane.fresh.pop_front();
    fresh_--;
}

void Lanes::add_suspect(Tracked& event) {
    event.place = Tracked::Place::pausing;
    event.lane->suspects.insert(&event);
    suspects_++;
}

void Lanes::remove_suspect(Tracked& event) noexcept {
    suspects_ -= event.lane->suspects.erase(&event);
}

Lane* Lanes::turn() noexcept {
    while (!turns_.empty() && turns_.front()->fresh.empty()) {
        Lane& lane = *turns_.front();
        turns_.pop_front();
        lane.has_turn = false;
        drop_if_idle(lane);
    }
    return turns_.empty() ? nullptr : turns_.front();
}

void Lanes::end_turn() {
    if (turns_.size() > 1) {
        turns_.push_back(turns_.front());
        turns_.pop_front();
    }
}

}  // namespace outbox
