#include "core/pipeline/pipeline.hpp"

#include <algorithm>
#include <cassert>

#include "core/endpoints.hpp"
#include "core/limits.hpp"

namespace outbox {

// Spare blocks above this number are freed.
static constexpr std::size_t max_spare_blocks = 8;

Pipeline::Pipeline(std::unique_ptr<Sink> sink, const Limits& limits, const Clock& clock,
                   DeliveryStats& stats, std::uint64_t seed)
    : sink_(std::move(sink)),
      capabilities_(sink_->capabilities()),
      limits_(limits),
      clock_(clock),
      stats_(stats),
      pauses_(limits.backoff_base, limits.backoff_cap, seed),
      seed_(seed),
      line_memory_(limits.budget),
      lanes_([this] {
          return LaneHealth(capabilities_.max_batches, limits_.backoff_base, limits_.backoff_cap,
                            seed_ += 0x9e3779b97f4a7c15);
      }),
      destination_(limits.backoff_base, limits.backoff_cap, seed) {}

Pipeline::~Pipeline() {
    sink_.reset();  // first, because it may refer to batches
    for (TrackedBlock* block : blocks_in_use_)
        delete block;
}

// ---------------------------------------------------------------------------------------------
// The log's side
// ---------------------------------------------------------------------------------------------

std::size_t Pipeline::held_bytes_limit() const noexcept {
    return limits_.budget == nullptr ? limits_.max_bytes
                                     : std::min(limits_.max_bytes, limits_.budget->share());
}

bool Pipeline::has_memory() const noexcept {
    return unsettled_ < limits_.max_events && held_bytes_ + line_bytes() < held_bytes_limit();
}

// Retries and fresh keys for probes may use a quarter more than the limit, so that they do not wait
// until the log is settled.
bool Pipeline::has_spare_memory() const noexcept {
    const auto more = [](std::size_t usual) { return usual + std::max<std::size_t>(usual / 4, 1); };
    return unsettled_ < more(limits_.max_events) &&
           held_bytes_ + line_bytes() < more(held_bytes_limit());
}

// A crash repeats at most this many events.
bool Pipeline::has_span() const noexcept {
    return ledger_.whole_span() < limits_.max_events * max_span_factor;
}

// When all events in memory have failed, only other events can tell an outage from a few bad keys.
bool Pipeline::has_room() const noexcept {
    const bool looks_for_fresh = limits_.moves_waiting && !lanes_.any_fresh() &&
                                 (destination_.is_down() || all_lanes_down());
    return (has_memory() || (looks_for_fresh && has_spare_memory())) && has_span() &&
           chains_.held() < max_held_keys;
}

// One event can keep a whole block, so memory may be full while few events are left.
bool Pipeline::starves() const noexcept {
    return !(has_memory() && has_span()) && !lanes_.any([](const Lane& lane) {
        return !lane.fresh.empty() && !lane.health.circuit.is_down();
    });
}

EventBlock* Pipeline::take_block() {
    keeps_spare_blocks_ = true;
    if (spare_blocks_.empty())
        return new TrackedBlock(limits_.budget);
    TrackedBlock* block = spare_blocks_.back().release();
    spare_blocks_.pop_back();
    return block;
}

void Pipeline::put_back(EventBlock* block) noexcept {
    std::unique_ptr<TrackedBlock> owned(static_cast<TrackedBlock*>(block));
    owned->clear();
    owned->charge();
    if (keeps_spare_blocks_ && spare_blocks_.size() < max_spare_blocks &&
        spare_blocks_.capacity() >= max_spare_blocks &&
        (limits_.budget == nullptr || limits_.budget->share() > max_spare_blocks * owned->bytes()))
        spare_blocks_.push_back(std::move(owned));
}

void Pipeline::admit(EventBlock* block) {
    auto& tracked = *static_cast<TrackedBlock*>(block);
    tracked.track();
    ledger_.add(tracked);
    take_in(tracked);
}

void Pipeline::take_in(TrackedBlock& block) {
    spare_blocks_.reserve(max_spare_blocks);  // so that put_back() need not allocate
    blocks_in_use_.push_back(&block);
    unsettled_ += block.events().size();
    held_bytes_ += block.bytes();
    block.in_use++;  // it stays until each event has found its place
    for (Tracked& event : block.tracked())
        enqueue(event);
    if (--block.in_use == 0)
        recycle(&block);
    line_memory_.set(line_bytes());
    stepped_at_ = -1;
}

// Retries wait for their key even if the sink is ordered: the next retry of a key must not be sent
// before the one ahead of it has been confirmed.
bool Pipeline::waits_for_its_key(const Event& event) const noexcept {
    return !event.ordering_key.empty() && (event.retry || !capabilities_.ordered);
}

void Pipeline::join_lane(Tracked& event) {
    lane_name_.clear();
    if (capabilities_.keys == KeyPolicy::alone)
        lane_name_ += event.event->ordering_key.empty() ? '-' : '+';
    if (capabilities_.lanes)
        sink_->lane_of(*event.event, lane_name_);
    lanes_.join(event, lane_name_);
}

void Pipeline::enqueue(Tracked& event) {
    const bool waits = waits_for_its_key(*event.event);
    if (is_held(*event.event)) {
        // The event waits behind an event of the log in memory, or else behind those in
        // outbox.delivery.
        const Tracked* last = waits ? chains_.last_of(event.event->ordering_key) : nullptr;
        if (last == nullptr || last->event->retry) {
            put_in_line(event);
            return;
        }
    }
    join_lane(event);
    event.turn = next_turn_++;
    if (waits && !chains_.join(event))
        return;
    if (event.event->has_failed && !capabilities_.ordered)
        suspect_after(event, 0, clock_.now());
    else
        lanes_.push_back(event);
}

// ---------------------------------------------------------------------------------------------
// Events in trouble
// ---------------------------------------------------------------------------------------------

// An event of the key that has not been sent must leave memory: later events of the key may already
// wait in outbox.delivery, and would overtake it.
void Pipeline::hold_key(std::string_view key) {
    if (chains_.hold(key))
        park_unsent([&](const Event& event) { return event.ordering_key == key; });
}

void Pipeline::hold_keys(std::vector<std::string>&& keys) {
    chains_.hold_only(std::move(keys));
    for (const Record& record : records_)
        if (!record.event->ordering_key.empty())
            chains_.hold(record.event->ordering_key);
    park_unsent([&](const Event& event) { return is_held(event); });
}

template <class Predicate>
void Pipeline::park_unsent(Predicate is_meant) {
    lanes_.erase_if([&](Tracked* event) {
        const bool parks = !event->event->retry && is_meant(*event->event);
        if (parks)
            park(*event);
        return parks;
    });
}

bool Pipeline::is_held(const Event& event) const {
    return !event.retry && chains_.holds(event.ordering_key);
}

void Pipeline::admit_retries(EventBlock* block) {
    assert(!block->empty());
    auto& tracked = *static_cast<TrackedBlock*>(block);
    tracked.track();
    for (Tracked& event : tracked.tracked()) {
        event.event->retry = true;
        event.settled = true;  // the log does not wait for it
    }
    take_in(tracked);
}

bool Pipeline::wants_retries() const noexcept {
    return !paused() && !backing_off() && has_spare_memory() && suspects() < max_suspects;
}

void Pipeline::record(Tracked& event, Record::Kind kind) {
    event.place = Tracked::Place::leaving;
    records_.push_back({.event = event.event, .kind = kind});
}

// Records an event whose turn it was, and all events behind it.
void Pipeline::park(Tracked& event) {
    record(event, Record::Kind::parked);
    park_waiting(event);
}

// The events that wait behind this one in memory will wait in outbox.delivery instead.
void Pipeline::park_waiting(Tracked& event) {
    if (waits_for_its_key(*event.event))
        park_linked(chains_.end(event));
}

void Pipeline::park_linked(Tracked* event) {
    while (event != nullptr) {
        record(*event, event->event->retry ? Record::Kind::unsent : Record::Kind::parked);
        event = std::exchange(event->next_of_key, nullptr);
    }
}

// The event leaves, or has left, for outbox.delivery. So do the events behind it.
void Pipeline::hold_behind(Tracked& event) {
    const std::string_view key = event.event->ordering_key;
    if (!key.empty()) {
        // All later events of the key wait behind this one, unless the sink keeps the order.
        if (waits_for_its_key(*event.event) && !capabilities_.ordered)
            chains_.hold(key);
        else
            hold_key(key);
    }
    park_waiting(event);
}

void Pipeline::put_in_line(Tracked& event) {
    ledger_.park(event, chains_.join_line(event.event->ordering_key));
    unsettled_--;
    event.block->in_use--;
}

void Pipeline::gather_records() {
    const std::deque<Parked>& line = ledger_.line();
    from_line_.reserve(max_parked);  // so that they do not move
    while (from_line_.size() < std::min(max_parked, line.size())) {
        const Parked& parked = line[from_line_.size()];
        Event& event = from_line_.emplace_back();
        event.position = parked.position;
        event.xid = parked.xid;
        event.ordering_key = *parked.key;
        records_.push_back({.event = &event});
    }
}

void Pipeline::recorded() {
    // Moved events first: they may have ended since, and then have a second record.
    for (const Record& record : records_)
        if (record.kind == Record::Kind::moved)
            moved(*record.event->tracked);
    for (const Record& record : records_)
        if (record.kind != Record::Kind::moved && record.event->tracked != nullptr)
            finish(*record.event->tracked);
    records_.clear();
    for (std::size_t i = 0; i < from_line_.size(); i++)
        chains_.leave_line(*ledger_.line()[i].key);
    ledger_.leave_line(from_line_.size());
    line_memory_.set(line_bytes());
    from_line_.clear();
    ledger_.advance();
}

// The event no longer belongs to the log. A block that is kept only for such events does not count
// towards the memory limit, so that requests that hang do not stop the reader. There is at most one
// such block per request that hangs.
void Pipeline::moved(Tracked& event) {
    ledger_.settle(event);
    TrackedBlock& block = *event.block;
    if (block.unsettled == 0) {
        block.is_extra = true;
        held_bytes_ -= block.bytes();
    }
}

// Forgets an event that needs no further work.
void Pipeline::finish(Tracked& event) {
    lanes_.leave(event);
    unsettled_--;
    if (!event.settled)
        ledger_.settle(event);
    if (--event.block->in_use == 0)
        recycle(event.block);
}

void Pipeline::recycle(TrackedBlock* block) noexcept {
    if (!block->is_extra)
        held_bytes_ -= block->bytes();
    std::erase(blocks_in_use_, block);
    put_back(block);
}

// ---------------------------------------------------------------------------------------------
// When to be called
// ---------------------------------------------------------------------------------------------

Micros Pipeline::deadline() const noexcept {
    Micros next = sink_->deadline();
    if (paused())
        return next;
    const auto at = [&](Micros when) {
        if (when > stepped_at_)  // otherwise it has been done, or an answer will trigger it
            next = std::min(next, when);
    };
    if (may_move() && (is_crowded() || is_stretched() || any_lane_blocks()))
        at(next_room_at_);
    const bool any = lanes_.any_fresh() || lanes_.suspects() > 0;
    if (!any)
        return next;
    if (destination_.is_down()) {
        if (!destination_.is_probed())
            next = std::min(next, destination_.resume_at());
        return next;
    }
    lanes_.for_each([&](const Lane& lane) {
        if (lane.fresh.empty() && lane.suspects.empty())
            return;
        const Circuit& circuit = lane.health.circuit;
        const Micros gate = std::max(lane.health.not_before, lane.health.flow.earliest());
        if (circuit.is_down()) {
            if (!circuit.is_probed())
                next = std::min(next, std::max(gate, circuit.resume_at()));
            return;
        }
        if (!lane.fresh.empty())
            at(gate);
        at(std::max(gate, suspect_due(lane)));
    });
    const bool may_explore = explores();
    for (const Request* request : in_flight_)
        if (can_hang(*request, may_explore))
            at(hangs_at(*request));
    return next;
}

void Pipeline::step() {
    // Without this loop, a sink that confirms at once (null, a fast local server) would need a turn
    // of the main loop per batch. The loop is bounded, because the log and the latch need their
    // turn too.
    for (int round = 0; round < 16; round++) {
        const Micros now = stepped_at_ = clock_.now();
        mark_hanging(now);
        submit_ready(now);

        outcomes_.clear();
        sink_->step(now, outcomes_);
        if (outcomes_.empty())
            break;
        const Micros answered_at = clock_.now();
        for (const Outcome& outcome : outcomes_)
            take_outcome(outcome, answered_at);
        requeue_failed();
        ledger_.advance();
    }
    make_room(stepped_at_);
    // The last confirmations made room, and no later event would trigger its use.
    submit_ready(stepped_at_);
}

void Pipeline::pause(bool paused) noexcept {
    if (paused_ && !paused)
        stepped_at_ = -1;
    paused_ = paused;
    if (Endpoints* endpoints = sink_->endpoints())
        endpoints->pause(paused);
}

void Pipeline::forget_waits() {
    const Micros now = clock_.now();
    destination_.hurry(now);
    lanes_.for_each([&](Lane& lane) {
        lane.health.circuit.hurry(now);
        lane.health.not_before = 0;
        const std::vector<Tracked*> suspects(lane.suspects.begin(), lane.suspects.end());
        for (Tracked* event : suspects) {
            lanes_.remove_suspect(*event);
            event->again_at = std::min(event->again_at, now);
            lanes_.add_suspect(*event);
        }
    });
    if (Endpoints* endpoints = sink_->endpoints())
        endpoints->forget_waits();
}

bool Pipeline::expects_outcomes() const noexcept {
    const Endpoints* endpoints = sink_->endpoints();
    return endpoints != nullptr ? endpoints->in_flight() > 0 : !in_flight_.empty();
}

// ---------------------------------------------------------------------------------------------
// State
// ---------------------------------------------------------------------------------------------

std::optional<Micros> Pipeline::oldest() const noexcept {
    const Tracked* first = ledger_.first_unsettled();
    const std::deque<Parked>& line = ledger_.line();
    if (first == nullptr && line.empty())
        return std::nullopt;
    return std::min(first != nullptr ? first->event->occurred_at : never,
                    line.empty() ? never : line.front().occurred_at);
}

// True if there are lanes with events and all of them are down.
bool Pipeline::all_lanes_down() const noexcept {
    bool any = false, all = true;
    lanes_.for_each([&](const Lane& lane) {
        any |= lane.members > 0 || lane.health.circuit.is_down();
        all &= lane.members == 0 || lane.health.circuit.is_down();
    });
    return any && all && lanes_down() > 0;
}

std::size_t Pipeline::lanes_down() const noexcept {
    std::size_t down = 0;
    lanes_.for_each([&](const Lane& lane) { down += lane.health.circuit.is_down(); });
    return down;
}

const std::string& Pipeline::lane_error() const noexcept {
    static const std::string none;
    const std::string* error = &none;
    lanes_.for_each([&](const Lane& lane) {
        if (lane.health.circuit.is_down())
            error = &lane.last_error;
    });
    return *error;
}

std::uint64_t Pipeline::failures() const noexcept {
    if (destination_.is_down())
        return destination_.failures();
    if (!all_lanes_down())
        return 0;
    std::uint64_t failures = 0;
    lanes_.for_each(
        [&](const Lane& lane) { failures = std::max(failures, lane.health.circuit.failures()); });
    return failures;
}

bool Pipeline::backing_off() const noexcept {
    const Micros now = clock_.now();
    if (destination_.is_down())
        return now < destination_.resume_at();
    if (!all_lanes_down())
        return false;
    bool all = true;
    lanes_.for_each([&](const Lane& lane) {
        if (lane.health.circuit.is_down())
            all &= now < lane.health.circuit.resume_at();
    });
    return all;
}

Micros Pipeline::next_attempt() const noexcept {
    if (paused())
        return never;
    if (destination_.is_down())
        return destination_.is_probed() ? never : destination_.resume_at();
    const bool some_down = lanes_down() > 0;
    Micros next = never;
    lanes_.for_each([&](const Lane& lane) {
        const Circuit& circuit = lane.health.circuit;
        const Micros gate = std::max(lane.health.not_before, lane.health.flow.earliest());
        if (circuit.is_down() && !circuit.is_probed())
            next = std::min(next, std::max(gate, circuit.resume_at()));
        else if (!some_down && !lane.suspects.empty())
            next = std::min(next, std::max(gate, suspect_due(lane)));
        else if (!some_down && !lane.fresh.empty() && lane.health.not_before > clock_.now())
            next = std::min(next, gate);
    });
    return next;
}

bool Pipeline::only_suspects_left() const noexcept {
    if (lanes_.any_fresh() || fresh_in_flight_ > 0 || suspects() == 0)
        return false;
    bool failed = true;
    lanes_.for_each([&](const Lane& lane) {
        if (lane.members > 0)
            failed &= lane.health.last_failed();
    });
    return failed;
}

std::size_t Pipeline::suspects() const noexcept {
    return lanes_.suspects() + suspects_in_flight_ + hanging_;
}

bool Pipeline::is_throttled() const noexcept {
    const Micros now = clock_.now();
    return lanes_.any([&](const Lane& lane) {
        return lane.members > 0 &&
               (lane.health.flow.is_throttled() || now < lane.health.not_before);
    });
}

double Pipeline::request_limit() const noexcept {
    double least = 0;
    lanes_.for_each([&](const Lane& lane) {
        const FlowLimit& flow = lane.health.flow;
        if (flow.is_throttled() && (least == 0 || flow.limit() < least))
            least = flow.limit();
    });
    return least;
}

}  // namespace outbox
