// The pipeline's state of an event, beside the event itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/clock.hpp"
#include "core/event.hpp"
#include "core/pipeline/memory_budget.hpp"

namespace outbox {

class TrackedBlock;
struct Lane;
struct Window;

struct Tracked {
    enum class Place : std::uint8_t {
        behind,   // waits for earlier events of its key
        ready,    // may be sent
        pausing,  // has failed, and waits for its next attempt
        sent,
        leaving,  // waits for its record to be written
    };

    Event* event = nullptr;
    TrackedBlock* block = nullptr;
    Lane* lane = nullptr;
    Tracked* next_of_key = nullptr;  // the event that waits behind this one
    std::uint64_t turn = 0;          // increases in the order of admission
    Micros again_at = 0;             // pausing: time of the next attempt
    std::uint64_t works_before = 0;  // successes of the lane at its first failure
    // Most events in its next batch, after a batch with more failed; 0 for any number.
    std::uint32_t batch_limit = 0;
    std::uint8_t failures = 0;  // in a row, of attempts that were sent
    std::uint8_t unsent = 0;    // attempts that found no connection
    Place place = Place::behind;
    bool suspect = false;  // it has failed or hangs, so its key is sent apart from others
    bool blamed = false;   // its last failure may be its own fault
    bool chained = false;  // travels in one batch with the event of its key before it
    bool settled = false;  // the log does not wait for it
};
static_assert(sizeof(Tracked) <= EventBlock::bytes_per_event - sizeof(Event));

// A block and the state of its events. The blocks of a window are a list in order of position.
class TrackedBlock : public EventBlock {
  public:
    explicit TrackedBlock(MemoryBudget* budget = nullptr) : memory_(budget) { charge(); }

    // Counts its memory, which may have grown, towards the budget.
    void charge() noexcept { memory_.set(bytes()); }
    // Call this once the block has been filled.
    void track() {
        charge();
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
    Window* window = nullptr;         // nullptr for retries, or if all is settled
    std::size_t in_use = 0;           // events still in memory
    std::size_t unsettled = 0;        // events that the log waits for
    std::size_t first_unsettled = 0;  // index at or before the first unsettled event
    // When the whole block is settled, the log is settled up to this position.
    std::int64_t through = 0;
    std::size_t span = 0;  // events up to `through`, including those of blocks that left the list

    bool is_extra = false;  // kept only for events that were moved

  private:
    std::vector<Tracked> tracked_;
    MemoryCharge memory_;
};

}  // namespace outbox
