#include "pipeline.hpp"

#include <algorithm>
#include <cassert>

namespace outbox {

// Spare blocks beyond this are given back to the system.
static constexpr std::size_t max_spare_blocks = 8;

Pipeline::Pipeline(std::unique_ptr<Sink> sink, const Limits& limits, const Clock& clock,
                   DeliveryStats& stats, std::uint64_t seed)
    : sink_(std::move(sink)),
      capabilities_(sink_->capabilities()),
      limits_(limits),
      clock_(clock),
      stats_(stats),
      backoff_(limits.backoff_base, limits.backoff_cap, seed) {}

Pipeline::~Pipeline() {
    sink_.reset();  // it may hold batches
    for (Window& window : windows_)
        while (EventBlock* block = window.first) {
            window.first = block->next;
            delete block;
        }
}

// ---------------------------------------------------------------------------------------------
// The log's side
// ---------------------------------------------------------------------------------------------

bool Pipeline::has_room() const noexcept {
    return unsettled_ < limits_.max_events && held_bytes_ < limits_.max_bytes &&
           span_ < limits_.max_events * max_span_factor;
}

void Pipeline::open_window() {
    assert(windows_.empty() || windows_.back().closed);
    windows_.emplace_back();
}

EventBlock* Pipeline::take_block() {
    if (spare_blocks_.empty())
        return new EventBlock;
    EventBlock* block = spare_blocks_.back().release();
    spare_blocks_.pop_back();
    return block;
}

void Pipeline::put_back(EventBlock* block) noexcept {
    std::unique_ptr<EventBlock> owned(block);
    block->clear();
    if (spare_blocks_.size() < max_spare_blocks && spare_blocks_.capacity() >= max_spare_blocks)
        spare_blocks_.push_back(std::move(owned));
}

void Pipeline::admit(EventBlock* block) {
    assert(!block->empty() && !windows_.empty());
    spare_blocks_.reserve(max_spare_blocks);  // so that put_back() need not allocate
    const std::span<Event> events = block->events();
    Window& window = windows_.back();

    block->window = &window;
    block->unsettled = block->span = events.size();
    block->through = events.back().position;
    block->previous = window.last;
    (window.last != nullptr ? window.last->next : window.first) = block;
    window.last = block;

    unsettled_ += events.size();
    span_ += events.size();
    held_bytes_ += block->bytes();
    for (Event& event : events)
        enqueue(event);
}

void Pipeline::enqueue(Event& event) {
    event.turn = next_turn_++;
    if (!capabilities_.ordered && !event.ordering_key.empty()) {
        auto [entry, is_first] = last_of_key_.try_emplace(event.ordering_key, &event);
        if (!is_first) {
            entry->second->next_of_key = &event;
            entry->second = &event;
            return;
        }
    }
    ready_.push_back(&event);
}

void Pipeline::close_window() {
    windows_.back().closed = true;
    advance_front();
}

// ---------------------------------------------------------------------------------------------
// The destination's side
// ---------------------------------------------------------------------------------------------

Micros Pipeline::deadline() const noexcept {
    const Micros sink = sink_->deadline();
    return backing_off() && !ready_.empty() ? std::min(sink, resume_at_) : sink;
}

void Pipeline::step() {
    // A sink that confirms at once (null, a fast local server) would otherwise need a turn of the
    // whole loop per batch. Bounded, because the log and the latch want their turn too.
    for (int round = 0; round < 16; round++) {
        const Micros now = clock_.now();
        if (backing_off() && now >= resume_at_)
            resume_at_ = 0;
        submit_ready();

        outcomes_.clear();
        sink_->step(now, outcomes_);
        if (outcomes_.empty())
            break;
        for (const Outcome& outcome : outcomes_) {
            batches_in_flight_--;
            if (outcome.batch->period == period_)
                of_this_period_--;
            if (outcome.confirmed)
                confirm(*outcome.batch);
            else
                fail(outcome);
            outcome.batch->events.clear();
            spare_batches_.push_back(outcome.batch);
        }
        requeue_failed();
        advance_front();
    }
    submit_ready();  // the last confirmations made room; nobody would wake us to use it
}

void Pipeline::submit_ready() {
    // After a failure one batch goes as a probe; the rest follows when it is confirmed. It does not
    // wait for batches of before, which may hang for as long as the destination lets them.
    const std::size_t limit = failures_ > 0 ? 1 : capabilities_.max_batches;
    while (!ready_.empty() && !backing_off() && of_this_period_ < limit &&
           batches_in_flight_ < capabilities_.max_batches) {
        Batch& batch = form_batch();
        batches_in_flight_++;
        of_this_period_++;
        sink_->submit(batch);
    }
}

Batch& Pipeline::form_batch() {
    if (spare_batches_.empty())
        spare_batches_.push_back(batches_.emplace_back(std::make_unique<Batch>()).get());
    Batch& batch = *spare_batches_.back();
    spare_batches_.pop_back();
    batch.bytes = 0;
    batch.period = period_;

    auto take = [&](Event& event) {
        const bool fits = batch.events.empty() ||
                          (batch.events.size() < capabilities_.max_batch_events &&
                           batch.bytes + event.payload.size() <= capabilities_.max_batch_bytes);
        if (fits) {
            batch.events.push_back(&event);
            batch.bytes += event.payload.size();
            event.in_flight = true;
        }
        return fits;
    };
    while (!ready_.empty() && take(*ready_.front())) {
        Event* event = ready_.front();
        ready_.pop_front();
        // Events that wait for this one may come along behind it.
        while (event->next_of_key != nullptr && take(*event->next_of_key)) {
            event = event->next_of_key;
            event->chained = true;
        }
    }
    return batch;
}

void Pipeline::confirm(Batch& batch) {
    if (batch.period == period_ && failures_ > 0) {
        failures_ = 0;
        backoff_.reset();
    }
    const Micros now = clock_.now(), unix_now = clock_.unix_now();
    for (Event* event : batch.events)
        settle(*event, now, unix_now);
}

void Pipeline::settle(Event& event, Micros now, Micros unix_now) {
    event.in_flight = false;
    event.settled = true;
    unsettled_--;
    stats_.settled(unix_now - event.occurred_at, event.payload.size(), now);
    if (!capabilities_.ordered && !event.ordering_key.empty())
        release_key(event);
    if (--event.block->unsettled == 0)
        block_settled(*event.block);
}

void Pipeline::release_key(Event& event) {
    Event* next = event.next_of_key;
    if (next == nullptr) {
        last_of_key_.erase(event.ordering_key);
        return;
    }
    // The entry's key is text of `event`, whose block may go: let it be text of the next one.
    auto entry = last_of_key_.extract(event.ordering_key);
    entry.key() = next->ordering_key;
    last_of_key_.insert(std::move(entry));
    if (!next->in_flight)
        ready_.push_back(next);
}

// Frees the block now, not when everything before it is settled: one slow event must not hold the
// memory of all that overtook it.
void Pipeline::block_settled(EventBlock& block) {
    Window& window = *block.window;
    if (block.previous != nullptr) {
        block.previous->through = block.through;
        block.previous->span += block.span;
        block.previous->next = block.next;
    } else {
        window.settled_to = block.through;
        window.any_settled = true;
        window.passed += block.span;
        window.first = block.next;
    }
    (block.next != nullptr ? block.next->previous : window.last) = block.previous;
    recycle(&block);
}

void Pipeline::fail(const Outcome& outcome) {
    stats_.failed();
    last_error_ = outcome.error;
    for (Event* event : outcome.batch->events) {
        event->in_flight = false;
        if (!event->chained)
            failed_.push_back(event);
        event->chained = false;
    }
    // Batches that were already under way when the destination failed tell nothing new, but for how
    // long it asks to be left alone.
    Micros wait = outcome.retry_after;
    if (outcome.batch->period == period_) {
        period_++;
        of_this_period_ = 0;
        failures_++;
        wait = std::max(wait, backoff_.next());
    }
    if (wait > 0)
        resume_at_ = std::max(resume_at_, clock_.now() + wait);
}

void Pipeline::requeue_failed() {
    std::sort(failed_.begin(), failed_.end(),
              [](const Event* a, const Event* b) { return a->turn < b->turn; });
    ready_.insert(ready_.begin(), failed_.begin(), failed_.end());
    failed_.clear();
}

// ---------------------------------------------------------------------------------------------
// Settlement
// ---------------------------------------------------------------------------------------------

void Pipeline::advance_front() {
    while (!windows_.empty()) {
        Window& window = windows_.front();
        span_ -= window.passed;
        window.passed = 0;
        if (EventBlock* block = window.first) {
            const std::span<Event> events = block->events();
            while (events[block->first_unsettled].settled) {
                window.settled_to = events[block->first_unsettled].position;
                window.any_settled = true;
                block->first_unsettled++;
                block->span--;
                span_--;
            }
            return;
        }
        if (!window.closed)
            return;
        highest_settled_ = std::max(highest_settled_, window.settled_to);
        windows_.pop_front();
        settled_windows_++;
    }
}

void Pipeline::recycle(EventBlock* block) noexcept {
    held_bytes_ -= block->bytes();
    put_back(block);
}

std::size_t Pipeline::take_settled_windows() noexcept {
    return std::exchange(settled_windows_, 0);
}

std::optional<std::int64_t> Pipeline::front_position() const noexcept {
    if (windows_.empty() || !windows_.front().any_settled)
        return std::nullopt;
    return windows_.front().settled_to;
}

std::optional<Micros> Pipeline::oldest() const noexcept {
    for (const Window& window : windows_)
        if (window.first != nullptr)
            return window.first->events()[window.first->first_unsettled].occurred_at;
    return std::nullopt;
}

}  // namespace outbox
