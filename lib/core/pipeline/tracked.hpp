// What the pipeline knows of an event, beside the event itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/clock.hpp"
#include "core/event.hpp"

namespace outbox {

class TrackedBlock;
struct Lane;
struct Window;

struct Tracked {
    enum class Place : std::uint8_t {
        behind,   // waits for the events of its key before it
        ready,    // may be sent
        pausing,  // has failed, and waits for its next attempt
        sent,
        leaving,  // is to be recorded
    };

    Event* event = nullptr;
    TrackedBlock* block = nullptr;
    Lane* lane = nullptr;
    Tracked* next_of_key = nullptr;  // the event that waits for this one
    std::uint64_t turn = 0;          // counts up as events are admitted
    Micros again_at = 0;             // pausing: until then
    std::uint64_t works_before = 0;  // successes of the lane when it failed first
    std::uint32_t batch_limit = 0;   // travels with fewer events than the batch that failed; 0: any
    std::uint8_t failures = 0;       // in a row, of attempts that were sent
    std::uint8_t unsent = 0;         // attempts that found no connection
    Place place = Place::behind;
    bool suspect = false;  // it has failed, or hangs: its key is on its own
    bool blamed = false;   // its last failure may be its own
    bool chained = false;  // travels in one batch with the event of its key before it
    bool settled = false;  // for the log
};
static_assert(sizeof(Tracked) <= EventBlock::bytes_per_event - sizeof(Event));

// A block with what is known of its events. A window's blocks are a list in order of position.
class TrackedBlock : public EventBlock {
  public:
    // Of a block that has been filled.
    void track() {
        tracked_.assign(events().size(), {});
        for (std::size_t i = 0; i < tracked_.size(); i++) {
            tracked_[i].event = &events()[i];
            tracked_[i].block = this;
            events()[i].tracked = &tracked_[i];
        }
        in_use = unsettled = span = tracked_.size();
        first_unsettled = 0;
        is_extra = false;
        previous = next = nullptr;
        window = nullptr;
    }
    std::vector<Tracked>& tracked() noexcept { return tracked_; }

    TrackedBlock* previous = nullptr;
    TrackedBlock* next = nullptr;
    Window* window = nullptr;         // nullptr: of retries, or all settled
    std::size_t in_use = 0;           // events that are needed in memory
    std::size_t unsettled = 0;        // for the log
    std::size_t first_unsettled = 0;  // index of an event at or before the first unsettled one
    std::int64_t through = 0;         // once all of the block is settled, everything up to here is
    std::size_t span = 0;  // events up to `through`, with those of blocks that left the list

    bool is_extra = false;  // stays only for events that were moved

  private:
    std::vector<Tracked> tracked_;
};

}  // namespace outbox
