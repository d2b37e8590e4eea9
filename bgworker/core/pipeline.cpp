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
    for (EventBlock* block : retry_blocks_)
        delete block;
}

// ---------------------------------------------------------------------------------------------
// The log's side
// ---------------------------------------------------------------------------------------------

bool Pipeline::has_memory() const noexcept {
    return unsettled_ < limits_.max_events && held_bytes_ < limits_.max_bytes;
}

bool Pipeline::has_room() const noexcept {
    return has_memory() && span_ < limits_.max_events * max_span_factor &&
           held_keys_.size() < max_held_keys;
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

    span_ += events.size();
    take_in(*block);
}

void Pipeline::take_in(EventBlock& block) {
    unsettled_ += block.events().size();
    held_bytes_ += block.bytes();
    for (Event& event : block.events())
        enqueue(event);
}

// Retries of a sink that is ordered wait for each other too: the next one of a key must not be on
// its way when the one before is refused.
bool Pipeline::waits_for_its_key(const Event& event) const noexcept {
    return !event.ordering_key.empty() && (event.retry || !capabilities_.ordered);
}

void Pipeline::join_lane(Event& event) {
    lane_name_.clear();
    if (capabilities_.keys == KeyPolicy::alone)
        lane_name_ += event.ordering_key.empty() ? '-' : '+';
    if (capabilities_.lanes)
        sink_->lane_of(event, lane_name_);
    ready_.join(event, lane_name_);
}

void Pipeline::enqueue(Event& event) {
    join_lane(event);
    event.turn = next_turn_++;
    const bool waits = waits_for_its_key(event);
    if (is_held(event)) {
        // Behind an event of the log that is on its way, or else behind those in outbox.delivery.
        const auto last = last_of_key_.find(event.ordering_key);
        if (!waits || last == last_of_key_.end() || last->second->retry) {
            record(event, Record::Kind::parked);
            return;
        }
    }
    if (waits) {
        auto [entry, is_first] = last_of_key_.try_emplace(event.ordering_key, &event);
        if (!is_first) {
            entry->second->next_of_key = &event;
            entry->second = &event;
            return;
        }
    }
    ready_.push_back(event);
}

void Pipeline::close_window(std::int64_t last_position) {
    windows_.back().closed = true;
    windows_.back().last_position = last_position;
    advance_front();
}

// ---------------------------------------------------------------------------------------------
// Events in trouble
// ---------------------------------------------------------------------------------------------

// What of the key has not been sent must not wait here while later events of it wait in
// outbox.delivery, and go from there.
void Pipeline::hold_key(std::string_view key) {
    if (held_keys_.emplace(key).second)
        park_unsent([&](const Event& event) { return event.ordering_key == key; });
}

void Pipeline::hold_keys(std::vector<std::string>&& keys) {
    held_keys_.clear();
    for (std::string& key : keys)
        held_keys_.insert(std::move(key));
    for (const Record& record : records_)
        if (!record.event->ordering_key.empty())
            held_keys_.emplace(record.event->ordering_key);
    park_unsent([&](const Event& event) { return is_held(event); });
}

template <class Predicate>
void Pipeline::park_unsent(Predicate is_meant) {
    const auto parks = [&](Event* event) {
        const bool parks = !event->retry && is_meant(*event);
        if (parks)
            park(*event);
        return parks;
    };
    ready_.erase_if(parks);
    std::erase_if(aside_, parks);
}

void Pipeline::free_key(std::string_view key) {
    const auto entry = held_keys_.find(key);
    if (entry != held_keys_.end())
        held_keys_.erase(entry);
}

bool Pipeline::is_held(const Event& event) const {
    return !held_keys_.empty() && !event.retry && held_keys_.contains(event.ordering_key);
}

void Pipeline::admit_retries(EventBlock* block) {
    assert(!block->empty());
    spare_blocks_.reserve(max_spare_blocks);
    retry_blocks_.push_back(block);
    block->unsettled = block->events().size();
    for (Event& event : block->events())
        event.retry = true;
    take_in(*block);
}

void Pipeline::record(Event& event, Record::Kind kind) {
    records_.push_back({.event = &event, .kind = kind});
}

// An event that was its key's turn.
void Pipeline::park(Event& event) {
    record(event, Record::Kind::parked);
    record_waiting(event);
}

// Whatever waits behind an event in memory waits in outbox.delivery instead.
void Pipeline::record_waiting(Event& event) {
    if (!waits_for_its_key(event))
        return;
    last_of_key_.erase(event.ordering_key);
    Event* next = std::exchange(event.next_of_key, nullptr);
    while (next != nullptr) {
        record(*next, next->retry ? Record::Kind::unsent : Record::Kind::parked);
        next = std::exchange(next->next_of_key, nullptr);
    }
}

void Pipeline::recorded() {
    for (const Record& record : records_)
        settle(*record.event);
    records_.clear();
    advance_front();
}

// ---------------------------------------------------------------------------------------------
// The destination's side
// ---------------------------------------------------------------------------------------------

Micros Pipeline::deadline() const noexcept {
    Micros next = sink_->deadline();
    if (paused_)
        return next;
    if (backing_off())
        return ready_.empty() && aside_.empty() ? next : std::min(next, resume_at_);
    for (const Event* event : aside_)
        next = std::min(next, event->again_at);
    return next;
}

void Pipeline::step() {
    // A sink that confirms at once (null, a fast local server) would otherwise need a turn of the
    // whole loop per batch. Bounded, because the log and the latch want their turn too.
    for (int round = 0; round < 16; round++) {
        const Micros now = clock_.now();
        if (backing_off() && now >= resume_at_)
            resume_at_ = 0;
        bring_back_set_aside(now);
        submit_ready();

        outcomes_.clear();
        sink_->step(now, outcomes_);
        if (outcomes_.empty())
            break;
        for (const Outcome& outcome : outcomes_) {
            batches_in_flight_--;
            outcome.batch->lane->batches_in_flight--;
            if (outcome.batch->period == period_)
                of_this_period_--;
            if (!outcome.of_events.empty())
                divide(outcome);
            else if (outcome.fate == Fate::confirmed)
                confirm(outcome);
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
    while (!paused_ && !backing_off() && of_this_period_ < limit &&
           batches_in_flight_ < capabilities_.max_batches) {
        Batch* batch = form_batch();
        if (batch == nullptr)
            break;
        batches_in_flight_++;
        batch->lane->batches_in_flight++;
        of_this_period_++;
        sink_->submit(*batch);
    }
}

// The next batch; nullptr: there is nothing to send.
Batch* Pipeline::form_batch() {
    if (spare_batches_.empty())
        spare_batches_.push_back(batches_.emplace_back(std::make_unique<Batch>()).get());
    Batch& batch = *spare_batches_.back();
    batch.bytes = 0;
    batch.period = period_;
    for (std::size_t turns = ready_.turns(); turns > 0; turns--) {
        Lane* lane = ready_.turn();
        if (lane == nullptr)
            break;
        if (!waits_for_more(*lane))
            fill(batch, *lane);
        ready_.end_turn();
        if (!batch.events.empty()) {
            batch.lane = lane;
            spare_batches_.pop_back();
            return &batch;
        }
    }
    return nullptr;
}

// Full batches cost a destination less. More comes while the window is read: at once when there is
// room, else once what is in flight makes room. A sink that is ordered has its next batches behind
// these anyway.
bool Pipeline::waits_for_more(const Lane& lane) const noexcept {
    if (capabilities_.ordered || failures_ > 0 || windows_.empty() || windows_.back().closed)
        return false;
    if (capabilities_.keys == KeyPolicy::alone && !lane.events.front()->ordering_key.empty())
        return has_room();  // each event has a batch of its own, with what waits behind it
    return (has_room() || lane.batches_in_flight > 0) && !fills_batch(lane);
}

bool Pipeline::fills_batch(const Lane& lane) const noexcept {
    if (lane.events.size() >= capabilities_.max_batch_events)
        return true;
    std::size_t bytes = 0;
    for (const Event* event : lane.events)
        bytes += sink_->size_of(*event);
    return bytes >= capabilities_.max_batch_bytes;
}

void Pipeline::fill(Batch& batch, Lane& lane) {
    std::size_t limit = capabilities_.max_batch_events;
    auto take = [&](Event& event) {
        const std::size_t limit_with =
            event.batch_limit > 0 ? std::min<std::size_t>(limit, event.batch_limit) : limit;
        const std::size_t size = sink_->size_of(event);
        const bool fits =
            batch.events.empty() || (batch.events.size() < limit_with &&
                                     batch.bytes + size <= capabilities_.max_batch_bytes);
        if (fits) {
            batch.events.push_back(&event);
            batch.bytes += size;
            event.in_flight = true;
            limit = limit_with;
        }
        return fits;
    };
    while (!lane.events.empty()) {
        Event* event = lane.events.front();
        const bool held = is_held(*event);
        if (!held && !take(*event))
            break;
        ready_.pop_front(lane);
        if (held) {
            park(*event);
            continue;
        }
        // Events that wait for this one may come along behind it.
        while (capabilities_.keys != KeyPolicy::one_each && event->next_of_key != nullptr &&
               event->next_of_key->lane == &lane && take(*event->next_of_key)) {
            event = event->next_of_key;
            event->chained = true;
        }
        if (capabilities_.keys == KeyPolicy::alone && !event->ordering_key.empty())
            break;
    }
}

void Pipeline::bring_back_set_aside(Micros now) {
    std::erase_if(aside_, [&](Event* event) {
        const bool due = now >= event->again_at;
        if (due)
            ready_.push_back(*event);
        return due;
    });
}

void Pipeline::confirm(const Outcome& outcome) {
    Batch& batch = *outcome.batch;
    destination_answered(batch);
    const Micros now = clock_.now(), unix_now = clock_.unix_now();
    for (std::size_t i = 0; i < batch.events.size(); i++) {
        keep_receipt(outcome, i, unix_now);
        confirm(*batch.events[i], now, unix_now);
    }
}

void Pipeline::keep_receipt(const Outcome& outcome, std::size_t i, Micros unix_now) {
    if (!limits_.receipts)
        return;
    const Event& event = *outcome.batch->events[i];
    receipts_.push_back({event.event_id, event.position, unix_now,
                         i < outcome.message_ids.size() ? outcome.message_ids[i] : std::string()});
}

// With a success.
void Pipeline::destination_answered(const Batch& batch) noexcept {
    if (batch.period != period_)
        return;
    destination_works();
    failed_in_a_row_ = refused_in_a_row_ = 0;
}

void Pipeline::destination_works() noexcept {
    failures_ = 0;
    backoff_.reset();
}

void Pipeline::confirm(Event& event, Micros now, Micros unix_now) {
    if (waits_for_its_key(event))
        release_key(event);
    arrived(event, now, unix_now);
}

void Pipeline::arrived(Event& event, Micros now, Micros unix_now) {
    event.in_flight = false;
    stats_.settled(unix_now - event.occurred_at, event.payload.size(), now);
    if (event.retry)
        record(event, Record::Kind::confirmed);
    else
        settle(event);
}

void Pipeline::settle(Event& event) {
    ready_.leave(event);
    event.settled = true;
    unsettled_--;
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
        ready_.push_back(*next);
}

// Frees the block now, not when everything before it is settled: one slow event must not hold the
// memory of all that overtook it.
void Pipeline::block_settled(EventBlock& block) {
    if (block.window == nullptr) {  // of retries
        std::erase(retry_blocks_, &block);
        recycle(&block);
        return;
    }
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

// ---------------------------------------------------------------------------------------------
// Failure
// ---------------------------------------------------------------------------------------------

// The destination took some events of the batch, and not others.
void Pipeline::divide(const Outcome& outcome) {
    const std::vector<Event*>& events = outcome.batch->events;
    const auto taken = [&](std::size_t i) { return outcome.of_events[i].fate == Fate::confirmed; };
    const Micros now = clock_.now(), unix_now = clock_.unix_now();
    bool any_taken = false;
    std::vector<Event*> left;             // of the events of one key that travelled together
    std::vector<std::size_t> first_left;  // the first one of each key, by index

    for (std::size_t i = 0, end; i < events.size(); i = end) {
        for (end = i + 1; end < events.size() && events[end]->chained;)
            end++;
        left.clear();
        for (std::size_t j = i; j < end; j++)
            if (!taken(j)) {
                if (left.empty())
                    first_left.push_back(j);
                left.push_back(events[j]);
            }
        if (!left.empty() && waits_for_its_key(*events[i]))
            keep_in_chain({events.data() + i, end - i}, left);
        for (std::size_t j = i; j < end; j++)
            if (taken(j)) {
                any_taken = true;
                keep_receipt(outcome, j, unix_now);
                left.empty() ? confirm(*events[j], now, unix_now)
                             : arrived(*events[j], now, unix_now);
            }
    }

    if (any_taken)
        destination_answered(*outcome.batch);
    else if (std::any_of(outcome.of_events.begin(), outcome.of_events.end(),
                         [](const EventOutcome& own) { return own.fate == Fate::failed; }))
        count_failed(*outcome.batch);
    for (const std::size_t i : first_left) {
        const EventOutcome& own = outcome.of_events[i];
        divided_.events.assign(1, events[i]);
        divided_.period = outcome.batch->period;
        fail_by_fate({&divided_, own.fate, own.error, outcome.retry_after, own.permanent});
    }
}

// Takes those that are not left out of the chain of their key. Of those that are left the first one
// has its key's turn; the others wait behind it, whatever became of them.
void Pipeline::keep_in_chain(std::span<Event* const> chain, std::span<Event* const> left) {
    Event* const after = chain.back()->next_of_key;
    auto entry = last_of_key_.extract(chain.front()->ordering_key);
    entry.key() = left.front()->ordering_key;
    if (after == nullptr)
        entry.mapped() = left.back();
    last_of_key_.insert(std::move(entry));
    for (Event* event : chain)
        event->next_of_key = nullptr;
    for (std::size_t i = 0; i < left.size(); i++) {
        left[i]->next_of_key = i + 1 < left.size() ? left[i + 1] : after;
        left[i]->in_flight = left[i]->chained = false;
    }
}

void Pipeline::fail(const Outcome& outcome) {
    if (outcome.fate == Fate::failed)
        count_failed(*outcome.batch);
    fail_by_fate(outcome);
}

void Pipeline::count_failed(const Batch& batch) noexcept {
    if (batch.period == period_)
        failed_in_a_row_++;
}

void Pipeline::fail_by_fate(const Outcome& outcome) {
    Batch& batch = *outcome.batch;
    for (Event* event : batch.events)
        event->in_flight = false;
    if (outcome.fate == Fate::undone) {
        requeue(batch);
        return;
    }
    stats_.failed();
    last_error_ = outcome.error;
    if (outcome.fate == Fate::refused) {
        on_refused(outcome);
    } else if (outcome.fate == Fate::failed && !capabilities_.ordered && batch.period == period_) {
        on_failed(outcome);
    } else {
        requeue(batch);
        back_off(outcome);
    }
}

void Pipeline::requeue(Batch& batch) {
    for (Event* event : batch.events)
        if (!std::exchange(event->chained, false))
            failed_.push_back(event);
}

void Pipeline::halve(Batch& batch) {
    for (Event* event : batch.events)
        event->batch_limit =
            static_cast<std::uint32_t>(std::max<std::size_t>(1, batch.events.size() / 2));
}

// Perhaps it is the event; perhaps the destination is going down.
void Pipeline::on_failed(const Outcome& outcome) {
    Batch& batch = *outcome.batch;
    Event& first = *batch.events.front();
    const bool alone = batch.events.size() == 1;
    if (alone && failures_ == 0 && first.failures < failures_of_event)
        first.failures++;
    if (alone && first.failures == failures_of_event &&
        failed_in_a_row_ < failures_of_destination) {
        refuse(first, outcome.error, false);
        return;
    }
    if (!alone)
        halve(batch);
    set_aside(batch);
    if (failed_in_a_row_ >= failures_of_destination || outcome.retry_after > 0)
        back_off(outcome);
}

void Pipeline::set_aside(Batch& batch) {
    for (Event* event : batch.events)
        if (!std::exchange(event->chained, false)) {
            event->again_at = clock_.now() + backoff_.after(event->failures);
            aside_.push_back(event);
        }
}

void Pipeline::on_refused(const Outcome& outcome) {
    Batch& batch = *outcome.batch;
    if (batch.events.size() > 1) {
        halve(batch);
        requeue(batch);
        return;
    }
    refuse(*batch.events.front(), outcome.error, outcome.permanent);
    if (batch.period != period_)
        return;
    if (++refused_in_a_row_ > max_refused_in_a_row)
        back_off(outcome);
    else
        destination_works();  // it answered
}

void Pipeline::refuse(Event& event, const std::string& error, bool permanent) {
    records_.push_back({&event, Record::Kind::refused, permanent, error});
    if (!event.ordering_key.empty())
        hold_key(event.ordering_key);
    record_waiting(event);
}

// Batches that were already under way when the destination failed tell nothing new, but for how
// long it asks to be left alone.
void Pipeline::back_off(const Outcome& outcome) {
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
    std::erase_if(failed_, [&](Event* event) {
        const bool held = is_held(*event);
        if (held)
            park(*event);
        return held;
    });
    for (auto event = failed_.rbegin(); event != failed_.rend(); event++)
        ready_.push_front(**event);
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
        highest_settled_ = std::max({highest_settled_, window.settled_to, window.last_position});
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
