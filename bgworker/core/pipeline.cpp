#include "pipeline.hpp"

#include <algorithm>
#include <cassert>

namespace outbox {

// Spare blocks beyond this are given back to the system.
static constexpr std::size_t max_spare_blocks = 8;
// Of a lane that is down so many events stay in memory, to probe it with.
static constexpr std::size_t kept_for_probes = 16;
// Fewer events than this are no reason to let anything leave memory.
static constexpr std::size_t few_events = 16;
// How often it is looked for what may leave memory.
static constexpr Micros lasting_request = milliseconds(500);
static constexpr Micros room_pause = milliseconds(10);
static constexpr Micros room_long_pause = milliseconds(100);

Pipeline::Pipeline(std::unique_ptr<Sink> sink, const Limits& limits, const Clock& clock,
                   DeliveryStats& stats, std::uint64_t seed)
    : sink_(std::move(sink)),
      capabilities_(sink_->capabilities()),
      limits_(limits),
      clock_(clock),
      stats_(stats),
      pauses_(limits.backoff_base, limits.backoff_cap, seed),
      seed_(seed),
      lanes_([this] {
          return LaneHealth(capabilities_.max_batches, limits_.backoff_base, limits_.backoff_cap,
                            seed_ += 0x9e3779b97f4a7c15);
      }),
      destination_(limits.backoff_base, limits.backoff_cap, seed) {}

Pipeline::~Pipeline() {
    sink_.reset();  // it may hold batches
    for (TrackedBlock* block : blocks_in_use_)
        delete block;
}

// ---------------------------------------------------------------------------------------------
// The log's side
// ---------------------------------------------------------------------------------------------

bool Pipeline::has_memory() const noexcept {
    return unsettled_ < limits_.max_events && held_bytes_ < limits_.max_bytes;
}

// There is a quarter more for what must not wait until the log has nothing to read.
bool Pipeline::has_spare_memory() const noexcept {
    const auto more = [](std::size_t usual) {
        return usual + std::max<std::size_t>(usual / 4, 1);
    };
    return unsettled_ < more(limits_.max_events) && held_bytes_ < more(limits_.max_bytes);
}

// When all there is has failed, only something else can tell an outage from a few bad keys.
bool Pipeline::has_room() const noexcept {
    const bool looks_for_fresh = limits_.moves_waiting && !lanes_.any_fresh() &&
                                 (destination_.is_down() || all_lanes_down());
    return (has_memory() || (looks_for_fresh && has_spare_memory())) && ledger_.span() < limits_.max_events * max_span_factor &&
           chains_.held() < max_held_keys;
}

// Blocks are kept by single events, too.
bool Pipeline::starves() const noexcept {
    return !lanes_.any_fresh() && !has_memory();
}

EventBlock* Pipeline::take_block() {
    if (spare_blocks_.empty())
        return new TrackedBlock;
    TrackedBlock* block = spare_blocks_.back().release();
    spare_blocks_.pop_back();
    return block;
}

void Pipeline::put_back(EventBlock* block) noexcept {
    std::unique_ptr<TrackedBlock> owned(static_cast<TrackedBlock*>(block));
    owned->clear();
    if (spare_blocks_.size() < max_spare_blocks && spare_blocks_.capacity() >= max_spare_blocks)
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
    for (Tracked& event : block.tracked())
        enqueue(event);
}

// Retries of a sink that is ordered wait for each other too: the next one of a key must not be on
// its way when the one before is refused.
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
    join_lane(event);
    event.turn = next_turn_++;
    const bool waits = waits_for_its_key(*event.event);
    if (is_held(*event.event)) {
        // Behind an event of the log that is on its way, or else behind those in outbox.delivery.
        const Tracked* last = waits ? chains_.last_of(event.event->ordering_key) : nullptr;
        if (last == nullptr || last->event->retry) {
            record(event, Record::Kind::parked);
            return;
        }
    }
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

// What of the key has not been sent must not wait here while later events of it wait in
// outbox.delivery, and go from there.
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
        event.settled = true;  // for the log it is
    }
    take_in(tracked);
}

bool Pipeline::wants_retries() const noexcept {
    return !paused_ && !backing_off() && has_spare_memory() && suspects() < max_suspects;
}

void Pipeline::record(Tracked& event, Record::Kind kind) {
    event.place = Tracked::Place::leaving;
    records_.push_back({.event = event.event, .kind = kind});
}

// An event that had its key's turn.
void Pipeline::park(Tracked& event) {
    record(event, Record::Kind::parked);
    park_waiting(event);
}

// Whatever waits behind an event in memory waits in outbox.delivery instead.
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

// The event leaves for outbox.delivery, or has left; so does what waits behind it.
void Pipeline::hold_behind(Tracked& event) {
    const std::string_view key = event.event->ordering_key;
    if (!key.empty()) {
        // All other events of the key wait behind this one, unless the sink keeps the order.
        if (waits_for_its_key(*event.event) && !capabilities_.ordered)
            chains_.hold(key);
        else
            hold_key(key);
    }
    park_waiting(event);
}

void Pipeline::recorded() {
    // Those that were moved first: they may have ended since, and then stand there once more.
    for (const Record& record : records_)
        if (record.kind == Record::Kind::moved)
            moved(*record.event->tracked);
    for (const Record& record : records_)
        if (record.kind != Record::Kind::moved)
            finish(*record.event->tracked);
    records_.clear();
    ledger_.advance();
}

// The log has let it go. A block that stays for such events only is one for each request that hangs,
// and does not keep the log from being read.
void Pipeline::moved(Tracked& event) {
    ledger_.settle(event);
    TrackedBlock& block = *event.block;
    if (block.unsettled == 0) {
        block.is_extra = true;
        held_bytes_ -= block.bytes();
    }
}

// Nothing is to be done with it any more.
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
    if (paused_)
        return next;
    const auto at = [&](Micros when) {
        if (when > stepped_at_)  // else it waits for an answer, or has been done
            next = std::min(next, when);
    };
    if (may_move() && (is_crowded() || any_lane_blocks()))
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
    // A sink that confirms at once (null, a fast local server) would otherwise need a turn of the
    // whole loop per batch. Bounded, because the log and the latch want their turn too.
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
    submit_ready(stepped_at_);  // the last confirmations made room; nobody would wake us to use it
}

// ---------------------------------------------------------------------------------------------
// Sending
// ---------------------------------------------------------------------------------------------

std::size_t Pipeline::most_requests() const noexcept {
    return capabilities_.max_batches + capabilities_.more_batches;
}

std::size_t Pipeline::most_suspects() const noexcept {
    return std::max<std::size_t>(1, most_requests() / suspects_share);
}

void Pipeline::submit_ready(Micros now) {
    while (!paused_ && send_one(now)) {
    }
}

bool Pipeline::send_one(Micros now) {
    if (in_flight_.size() >= most_requests() || !destination_.may_send(now))
        return false;
    if (destination_.is_down())
        return send_fresh(now, true) || probe_with_suspect(now);
    if (lanes_.suspects() == 0)
        return send_fresh(now, false);
    if (fresh_since_suspect_ >= fresh_per_suspect)
        return send_suspect(now) || send_fresh(now, false);
    return send_fresh(now, false) || send_suspect(now);
}

bool Pipeline::may_take_fresh(const Lane& lane, Micros now) const noexcept {
    const LaneHealth& health = lane.health;
    if (capabilities_.ordered)
        return true;
    if (!health.circuit.may_send(now) || now < health.not_before)
        return false;
    if (health.circuit.is_down())
        return true;
    if (now < health.flow.earliest())
        return false;
    // One lane whose requests take long leaves something to the others.
    const std::size_t most = capabilities_.max_batches;
    return lanes_.count() == 1 || lane.fresh_in_flight < std::max<std::size_t>(1, most - most / 4);
}

// `probe`: the destination is down, and any lane will do; one that works rather than others.
bool Pipeline::send_fresh(Micros now, bool probe) {
    if (!lanes_.any_fresh() || (!probe && fresh_in_flight_ >= capabilities_.max_batches))
        return false;
    Request& request = spare_request();
    for (int pass = 0; pass < (probe ? 2 : 1); pass++)
        for (std::size_t turns = lanes_.turns(); turns > 0; turns--) {
            Lane* lane = lanes_.turn();
            if (lane == nullptr)
                return false;
            const bool may = probe ? pass > 0 || !lane->health.circuit.is_down()
                                   : may_take_fresh(*lane, now);
            if (may && !waits_for_more(*lane))
                fill(request, *lane);
            lanes_.end_turn();
            if (!request.events.empty()) {
                submit(request, *lane, true, now);
                return true;
            }
        }
    return false;
}

bool Pipeline::may_take_suspect(const Lane& lane, Micros now) const noexcept {
    const LaneHealth& health = lane.health;
    if (lane.suspects.empty() || now < health.not_before || !health.circuit.may_send(now))
        return false;
    if (health.circuit.is_down())
        return lane.fresh.empty();  // as a probe
    return now >= health.flow.earliest();
}

// The first of those that failed once, or of those that failed often.
static Tracked* first_often(const Lane& lane) noexcept {
    // All that failed often come behind all others.
    if (lane.suspects.empty() || !BySuspicion::often(**lane.suspects.rbegin()))
        return nullptr;
    Tracked earliest = **lane.suspects.rbegin();
    earliest.again_at = 0;
    earliest.turn = 0;
    const auto first = lane.suspects.lower_bound(&earliest);
    return first == lane.suspects.end() ? nullptr : *first;
}

static Tracked* first_seldom(const Lane& lane) noexcept {
    if (lane.suspects.empty() || BySuspicion::often(**lane.suspects.begin()))
        return nullptr;
    return *lane.suspects.begin();
}

Tracked* Pipeline::longest_waiting(const Lane& lane) noexcept {
    Tracked* seldom = first_seldom(lane);
    Tracked* often = first_often(lane);
    if (seldom == nullptr || often == nullptr)
        return seldom != nullptr ? seldom : often;
    return seldom->again_at <= often->again_at ? seldom : often;
}

Micros Pipeline::suspect_due(const Lane& lane) const noexcept {
    const Tracked* first = longest_waiting(lane);
    return first == nullptr ? never : first->again_at;
}

// Those that fail again and again have half of what suspects have.
Tracked* Pipeline::due_suspect(const Lane& lane, Micros now) const noexcept {
    Tracked* seldom = first_seldom(lane);
    if (seldom != nullptr && seldom->again_at <= now)
        return seldom;
    Tracked* often = first_often(lane);
    const std::size_t most = std::max<std::size_t>(1, most_suspects() / 2);
    return often != nullptr && often->again_at <= now && often_in_flight_ < most ? often : nullptr;
}

bool Pipeline::send_suspect(Micros now) {
    const std::size_t most = most_requests();
    const std::size_t occupied = suspects_in_flight_ + hanging_;
    // Never the last one: something fresh may come.
    if (suspects_in_flight_ >= most_suspects() || (most > 1 && occupied + 1 >= most))
        return false;
    Lane* chosen = nullptr;
    Tracked* first = nullptr;
    lanes_.for_each([&](Lane& lane) {
        if (!may_take_suspect(lane, now))
            return;
        Tracked* suspect =
            lane.health.circuit.is_down() ? *lane.suspects.begin() : due_suspect(lane, now);
        if (suspect != nullptr && (first == nullptr || suspect->again_at < first->again_at)) {
            first = suspect;
            chosen = &lane;
        }
    });
    if (first == nullptr)
        return false;
    Request& request = spare_request();
    fill_with_suspects(request, *chosen, *first, now);
    submit(request, *chosen, false, now);
    return true;
}

// There is nothing fresh to probe the destination with: those that failed least, then each in turn.
bool Pipeline::probe_with_suspect(Micros now) {
    Lane* chosen = nullptr;
    Tracked* first = nullptr;
    lanes_.for_each([&](Lane& lane) {
        if (!lane.suspects.empty() &&
            (first == nullptr || BySuspicion()(*lane.suspects.begin(), first))) {
            first = *lane.suspects.begin();
            chosen = &lane;
        }
    });
    if (first == nullptr)
        return false;
    Request& request = spare_request();
    fill_with_suspects(request, *chosen, *first, now);
    submit(request, *chosen, false, now);
    return true;
}

Pipeline::Request& Pipeline::spare_request() {
    if (spare_requests_.empty())
        spare_requests_.push_back(requests_.emplace_back(std::make_unique<Request>()).get());
    Request& request = *spare_requests_.back();
    request.bytes = 0;
    request.events.clear();
    return request;
}

void Pipeline::submit(Request& request, Lane& lane, bool fresh, Micros now) {
    spare_requests_.pop_back();
    in_flight_.push_back(&request);
    request.lane = &lane;
    request.number = ++sent_;
    request.period = destination_.period();
    request.lane_period = lane.health.circuit.period();
    request.sent_at = now;
    request.fresh = fresh;
    request.often = !fresh && BySuspicion::often(*request.events.front()->tracked);
    request.hangs = false;
    lane.in_flight++;
    destination_.sent();
    lane.health.circuit.sent();
    lane.health.flow.sent(now);
    if (fresh) {
        lane.fresh_in_flight++;
        fresh_in_flight_++;
        fresh_since_suspect_++;
    } else {
        suspects_in_flight_++;
        often_in_flight_ += request.often;
        fresh_since_suspect_ = 0;
    }
    sink_->submit(request);
}

// Full batches cost a destination less. More comes while the window is read: at once when there is
// room, else once what is in flight makes room. A sink that is ordered has its next batches behind
// these anyway.
bool Pipeline::waits_for_more(const Lane& lane) const noexcept {
    if (capabilities_.ordered || destination_.is_down() || lane.health.circuit.is_down() ||
        !ledger_.is_open())
        return false;
    if (capabilities_.keys == KeyPolicy::alone && !lane.fresh.front()->event->ordering_key.empty())
        return has_room();  // each event has a batch of its own, with what waits behind it
    return (has_room() || lane.fresh_in_flight > 0) && !fills_batch(lane);
}

bool Pipeline::fills_batch(const Lane& lane) const noexcept {
    if (lane.fresh.size() >= capabilities_.max_batch_events)
        return true;
    std::size_t bytes = 0;
    for (const Tracked* event : lane.fresh)
        bytes += sink_->size_of(*event->event);
    return bytes >= capabilities_.max_batch_bytes;
}

// `limit`: of events in the batch, lowered by those that are to travel with fewer.
bool Pipeline::take(Request& request, Tracked& event, std::size_t& limit) {
    const std::size_t limit_with =
        event.batch_limit > 0 ? std::min<std::size_t>(limit, event.batch_limit) : limit;
    const std::size_t size = sink_->size_of(*event.event);
    const bool fits = request.events.empty() ||
                      (request.events.size() < limit_with &&
                       request.bytes + size <= capabilities_.max_batch_bytes);
    if (fits) {
        request.events.push_back(event.event);
        request.bytes += size;
        event.place = Tracked::Place::sent;
        limit = limit_with;
    }
    return fits;
}

// Events that wait for the one that was taken may come along behind it.
void Pipeline::take_with_followers(Request& request, Tracked& event, std::size_t& limit) {
    Tracked* last = &event;
    while (capabilities_.keys != KeyPolicy::one_each && last->next_of_key != nullptr &&
           last->next_of_key->lane == event.lane && take(request, *last->next_of_key, limit)) {
        last = last->next_of_key;
        last->chained = true;
    }
}

void Pipeline::fill(Request& request, Lane& lane) {
    std::size_t limit = capabilities_.max_batch_events;
    while (!lane.fresh.empty()) {
        Tracked& event = *lane.fresh.front();
        const bool held = is_held(*event.event);
        if (!held && !take(request, event, limit))
            break;
        lanes_.pop_front(lane);
        if (held) {
            park(event);
            continue;
        }
        take_with_followers(request, event, limit);
        if (capabilities_.keys == KeyPolicy::alone && !event.event->ordering_key.empty())
            break;
    }
}

void Pipeline::fill_with_suspects(Request& request, Lane& lane, Tracked& first, Micros now) {
    std::size_t limit = capabilities_.max_batch_events;
    for (Tracked* event = &first; event != nullptr && take(request, *event, limit);
         event = due_suspect(lane, now)) {
        lanes_.remove_suspect(*event);
        take_with_followers(request, *event, limit);
        if (capabilities_.keys == KeyPolicy::alone && !event->event->ordering_key.empty())
            break;
    }
}

// ---------------------------------------------------------------------------------------------
// Requests that hang
// ---------------------------------------------------------------------------------------------

Micros Pipeline::hangs_at(const Request& request) const noexcept {
    const Micros usual = request.lane->health.flow.usual_duration();
    return request.sent_at +
           (usual == 0 ? hangs_at_first : std::max(hangs_at_least, usual * hangs_factor));
}

static bool is_overtaken(const Lane& lane, std::uint64_t number) noexcept {
    return lane.overtaken_to > number;
}

// What was overtaken: else it is the destination that takes long. But when all requests take long a
// few more are tried, which may overtake them. One lane cannot have all.
bool Pipeline::can_hang(const Request& request, bool explores) const noexcept {
    return request.fresh && !request.hangs && !capabilities_.ordered &&
           (explores || is_overtaken(*request.lane, request.number)) &&
           (lanes_.count() == 1 || request.lane->hanging < most_requests() / 2);
}

bool Pipeline::explores() const noexcept {
    if (fresh_in_flight_ < capabilities_.max_batches || capabilities_.more_batches == 0)
        return false;
    const auto tried = std::count_if(in_flight_.begin(), in_flight_.end(), [](const Request* r) {
        return r->hangs && !is_overtaken(*r->lane, r->number);
    });
    return static_cast<std::size_t>(tried) < std::max<std::size_t>(1, capabilities_.more_batches / 4);
}

void Pipeline::mark_hanging(Micros now) {
    if (most_requests() == 1)
        return;
    for (Request* request : in_flight_) {
        if (now < hangs_at(*request) || !can_hang(*request, explores()))
            continue;
        request->hangs = true;
        request->lane->hanging++;
        hanging_++;
        request->lane->fresh_in_flight--;
        fresh_in_flight_--;
        for (Event* event : request->events) {
            event->tracked->suspect = true;
            if (!event->tracked->chained && waits_for_its_key(*event))
                chains_.set_suspect(*event->tracked, true);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// What becomes of requests
// ---------------------------------------------------------------------------------------------

void Pipeline::take_outcome(const Outcome& outcome, Micros now) {
    auto& request = *static_cast<Request*>(outcome.batch);
    end(request);
    if (!outcome.of_events.empty()) {
        divide(outcome, now);
    } else if (outcome.fate == Fate::confirmed) {
        weigh(request, outcome, Fate::confirmed, outcome.scope, now);
        confirm(outcome, now);
    } else {
        if (outcome.fate != Fate::refused || request.events.size() == 1)
            weigh(request, outcome, outcome.fate, outcome.scope, now);
        not_confirmed(request, request.events,
                      {outcome.fate, outcome.error, outcome.permanent, outcome.scope}, now);
    }
    request.events.clear();
    spare_requests_.push_back(&request);
}

void Pipeline::end(Request& request) {
    Lane& lane = *request.lane;
    std::erase(in_flight_, &request);
    lane.in_flight--;
    destination_.ended(request.period);
    lane.health.circuit.ended(request.lane_period);
    if (!request.fresh) {
        suspects_in_flight_--;
        often_in_flight_ -= request.often;
    } else if (request.hangs) {
        hanging_--;
        lane.hanging--;
    } else {
        fresh_in_flight_--;
        lane.fresh_in_flight--;
    }
}

// What the answer to a request says of its lane, and of the destination.
void Pipeline::weigh(const Request& request, const Outcome& outcome, Fate fate, Scope scope,
                     Micros now) {
    Lane& lane = *request.lane;
    LaneHealth& health = lane.health;
    const Micros took = now - request.sent_at;
    const bool current = request.period == destination_.period() &&
                         request.lane_period == health.circuit.period();
    const bool probes = destination_.is_down() || health.circuit.is_down();
    // What becomes of a suspect is evidence about the suspect, unless nothing else can be had.
    const bool hung = request.hangs && is_overtaken(lane, request.number);
    const bool counts =
        current &&
        (probes || (request.fresh && !hung && !request.events.front()->key_failed));
    if (fate != Fate::confirmed) {
        lane.last_error = outcome.error;
        last_error_ = outcome.error;
        if (fate != Fate::undone)
            stats_.failed();
        if (fate == Fate::throttled)
            stats_.throttled();
    }
    if (outcome.retry_after > 0) {
        const Micros until = now + outcome.retry_after;
        if (fate == Fate::unavailable && scope != Scope::lane && destination_.is_down())
            destination_.leave_alone(until);
        else if (!capabilities_.ordered)
            health.not_before = std::max(health.not_before, until);
    }
    switch (fate) {
        case Fate::confirmed:
            lane.overtaken_to = std::max(lane.overtaken_to, request.number);
            health.flow.answered(now, took, false);
            if (current)
                weigh_confirmed(lane, now);
            break;
        case Fate::refused:
            if (!counts)
                break;
            if (health.refused())
                lane_failed(lane, outcome.retry_after, now);
            else
                weigh_answered(lane, now);
            break;
        case Fate::throttled:
            if (counts) {
                health.flow.answered(now, took, true);
                if (health.throttled())
                    lane_failed(lane, outcome.retry_after, now);
            }
            break;
        case Fate::failed:
            if (capabilities_.ordered ? current : counts && health.failed())
                lane_failed(lane, outcome.retry_after, now);
            break;
        case Fate::unavailable:
            if (scope == Scope::lane && !capabilities_.ordered) {
                if (counts) {
                    lane_failed(lane, outcome.retry_after, now);
                    lane.down_by_itself = true;
                }
            } else if (scope == Scope::connection && !capabilities_.ordered) {
                // Nothing of the event has been sent, whoever it is.
                if (current && (++lost_connections_ >= max_lost_connections || in_flight_.empty()))
                    destination_failed(outcome.retry_after, now);
            } else if (counts || (current && capabilities_.ordered)) {
                destination_failed(outcome.retry_after, now);
            }
            break;
        case Fate::undone:
            break;
    }
}

void Pipeline::weigh_confirmed(Lane& lane, Micros now) {
    lane.health.confirmed();
    lost_connections_ = lanes_lost_ = 0;
    const bool was_down = destination_.is_down() || lane.health.circuit.is_down();
    weigh_answered(lane, now);
    if (was_down)
        forgive(lane, now);
}

// The destination has looked at an event.
void Pipeline::weigh_answered(Lane& lane, Micros now) {
    if (lane.health.circuit.is_down())
        lane.health.flow.start_again(now, std::max(1.0, static_cast<double>(capabilities_.max_batches) / 4));
    destination_.works();
    lane.health.circuit.works();
}

void Pipeline::lane_failed(Lane& lane, Micros retry_after, Micros now) {
    if (destination_.is_down() || capabilities_.ordered) {
        destination_failed(retry_after, now);
        return;
    }
    if (!lane.health.circuit.is_down() && ++lanes_lost_ >= max_lanes_lost)
        destination_failed(retry_after, now);
    lane.health.circuit.failed(now, retry_after);
    lane.down_by_itself = false;
}

void Pipeline::destination_failed(Micros retry_after, Micros now) {
    destination_.failed(now, retry_after);
    lost_connections_ = 0;
}

// What failed while the lane was down may have failed because of that.
void Pipeline::forgive(Lane& lane, Micros now) {
    recovered_ = true;
    const std::vector<Tracked*> suspects(lane.suspects.begin(), lane.suspects.end());
    for (Tracked* event : suspects) {
        if (event->event->has_failed)
            continue;
        lanes_.remove_suspect(*event);
        event->failures = std::min<std::uint8_t>(event->failures, 1);
        event->again_at = std::min(event->again_at, now + pauses_.after(0));
        lanes_.add_suspect(*event);
    }
}

// ---------------------------------------------------------------------------------------------
// Confirmed
// ---------------------------------------------------------------------------------------------

void Pipeline::confirm(const Outcome& outcome, Micros now) {
    const std::vector<Event*>& events = outcome.batch->events;
    const Micros unix_now = clock_.unix_now();
    for (std::size_t i = 0; i < events.size(); i++) {
        keep_receipt(outcome, i, unix_now);
        confirm(*events[i]->tracked, now, unix_now);
    }
}

void Pipeline::keep_receipt(const Outcome& outcome, std::size_t i, Micros unix_now) {
    if (!limits_.receipts)
        return;
    const Event& event = *outcome.batch->events[i];
    receipts_.push_back({event.event_id, event.position, unix_now,
                         i < outcome.message_ids.size() ? outcome.message_ids[i] : std::string()});
}

void Pipeline::confirm(Tracked& event, Micros now, Micros unix_now) {
    if (waits_for_its_key(*event.event))
        release_key(event);
    arrived(event, now, unix_now);
}

void Pipeline::arrived(Tracked& event, Micros now, Micros unix_now) {
    stats_.settled(unix_now - event.event->occurred_at, event.event->payload.size(), now);
    if (event.event->retry)
        record(event, Record::Kind::confirmed);
    else
        finish(event);
}

void Pipeline::release_key(Tracked& event) {
    Tracked* next = chains_.release(event);
    if (next != nullptr && next->place == Tracked::Place::behind)
        lanes_.push_back(*next);
}

// The destination took some events of the batch, and not others.
void Pipeline::divide(const Outcome& outcome, Micros now) {
    const auto& request = *static_cast<const Request*>(outcome.batch);
    const std::vector<Event*>& events = request.events;
    const auto taken = [&](std::size_t i) { return outcome.of_events[i].fate == Fate::confirmed; };
    const Micros unix_now = clock_.unix_now();
    const EventOutcome* worst = nullptr;
    bool any_taken = false;
    for (const EventOutcome& own : outcome.of_events) {
        any_taken |= own.fate == Fate::confirmed;
        if (own.fate != Fate::confirmed && own.fate != Fate::refused)
            worst = &own;
    }
    // One answer, however many events it speaks of.
    if (any_taken)
        weigh(request, outcome, Fate::confirmed, outcome.scope, now);
    if (worst != nullptr && (!any_taken || worst->fate == Fate::throttled))
        weigh(request, {outcome.batch, worst->fate, worst->error, outcome.retry_after}, worst->fate,
              worst->scope, now);

    std::vector<Tracked*> left;           // of the events of one key that travelled together
    std::vector<std::size_t> first_left;  // the first one of each key, by index
    for (std::size_t i = 0, end; i < events.size(); i = end) {
        for (end = i + 1; end < events.size() && events[end]->tracked->chained;)
            end++;
        left.clear();
        for (std::size_t j = i; j < end; j++)
            if (!taken(j)) {
                if (left.empty())
                    first_left.push_back(j);
                left.push_back(events[j]->tracked);
            }
        if (!left.empty() && waits_for_its_key(*events[i])) {
            chains_.keep({events.data() + i, end - i}, left);
            for (Tracked* event : left) {
                event->place = Tracked::Place::behind;
                event->chained = false;
            }
        }
        for (std::size_t j = i; j < end; j++)
            if (taken(j)) {
                keep_receipt(outcome, j, unix_now);
                left.empty() ? confirm(*events[j]->tracked, now, unix_now)
                             : arrived(*events[j]->tracked, now, unix_now);
            }
    }
    for (const std::size_t i : first_left)
        not_confirmed(request, {&events[i], 1}, outcome.of_events[i], now);
}

// ---------------------------------------------------------------------------------------------
// Not confirmed
// ---------------------------------------------------------------------------------------------

void Pipeline::not_confirmed(const Request& request, std::span<Event* const> events,
                             const EventOutcome& why, Micros now) {
    for (Event* event : events)
        event->tracked->place = Tracked::Place::behind;
    if (why.fate == Fate::refused) {
        refused(request, events, why, now);
        return;
    }
    if (why.fate == Fate::undone || capabilities_.ordered) {
        requeue(events);
        return;
    }
    const bool alone = events.size() == 1;
    const bool again = events.front()->tracked->failures > 0;
    if (!alone && (why.fate == Fate::failed || again))
        halve(events);
    for (Event* event : events)
        if (!std::exchange(event->tracked->chained, false))
            failed(*event->tracked, why, alone, now);
}

void Pipeline::requeue(std::span<Event* const> events) {
    for (Event* event : events)
        if (!std::exchange(event->tracked->chained, false))
            failed_.push_back(event->tracked);
}

void Pipeline::halve(std::span<Event* const> events) {
    for (Event* event : events)
        event->tracked->batch_limit =
            static_cast<std::uint32_t>(std::max<std::size_t>(1, events.size() / 2));
}

void Pipeline::refused(const Request& request, std::span<Event* const> events,
                       const EventOutcome& why, Micros now) {
    if (events.size() == 1) {
        refuse(*events.front()->tracked, why.error, why.permanent);
        return;
    }
    last_error_ = why.error;
    stats_.failed();
    halve(events);
    if (request.fresh) {
        requeue(events);
        return;
    }
    for (Event* event : events)
        if (!std::exchange(event->tracked->chained, false))
            suspect_after(*event->tracked, 0, now);
}

// An attempt that failed makes the event a suspect.
void Pipeline::failed(Tracked& event, const EventOutcome& why, bool alone, Micros now) {
    if (is_held(*event.event)) {
        park(event);
        return;
    }
    if (event.failures == 0)
        event.works_before = event.lane->health.successes();
    if (event.failures < UINT8_MAX)
        event.failures++;
    event.blamed = why.fate == Fate::failed &&
                   event.lane->health.successes() > event.works_before;
    if (alone && is_at_fault(event, why.fate))
        refuse(event, why.error, false);
    else
        suspect_after(event, pause_after(event.failures), now);
}

// Most attempts that fail for the first time fail by chance, and are soon made again.
Micros Pipeline::pause_after(unsigned failures) noexcept {
    const Micros pause = pauses_.after(failures - 1);
    return failures == 1 ? pause / 8 : pause;
}

// It fails while its lane works for others.
bool Pipeline::is_at_fault(const Tracked& event, Fate fate) const noexcept {
    const LaneHealth& health = event.lane->health;
    if (destination_.is_down() || health.circuit.is_down())
        return false;
    if (event.event->has_failed && fate == Fate::failed)
        return true;  // as was found out before
    return health.successes() > event.works_before &&
           event.failures >= (fate == Fate::failed ? failures_of_event : unavailable_to_event);
}

void Pipeline::suspect_after(Tracked& event, Micros pause, Micros now) {
    event.again_at = now + pause;
    event.suspect = true;
    if (waits_for_its_key(*event.event))
        chains_.set_suspect(event, true);
    lanes_.add_suspect(event);
}

void Pipeline::refuse(Tracked& event, const std::string& error, bool permanent) {
    event.place = Tracked::Place::leaving;
    records_.push_back({event.event, Record::Kind::refused, permanent, error});
    hold_behind(event);
}

void Pipeline::requeue_failed() {
    std::sort(failed_.begin(), failed_.end(),
              [](const Tracked* a, const Tracked* b) { return a->turn < b->turn; });
    std::erase_if(failed_, [&](Tracked* event) {
        const bool held = is_held(*event->event);
        if (held)
            park(*event);
        return held;
    });
    for (auto event = failed_.rbegin(); event != failed_.rend(); event++)
        lanes_.push_front(**event);
    failed_.clear();
}

// ---------------------------------------------------------------------------------------------
// What waits leaves memory
// ---------------------------------------------------------------------------------------------

std::size_t Pipeline::most_waiting() const noexcept {
    return std::max(few_events, limits_.max_events / 4);
}

bool Pipeline::is_crowded() const noexcept {
    return chains_.held_back() > most_waiting() || (suspects() > 0 && starves());
}

// Too much of what is in memory waits for a lane that is down.
bool Pipeline::blocks(const Lane& lane) const noexcept {
    return (lanes_.count() > 1 || capabilities_.lanes) && lane.health.circuit.is_down() &&
           lane.members > std::max(few_events, limits_.max_events / 8);
}

bool Pipeline::any_lane_blocks() const noexcept {
    bool any = false;
    lanes_.for_each([&](const Lane& lane) { any |= blocks(lane); });
    return any;
}

// Nothing is known to work. Of several topics one that does not exist is no outage, though for the
// moment nothing else has been read.
bool Pipeline::is_outage() const noexcept {
    if (destination_.is_down())
        return true;
    bool excused = false;
    if (capabilities_.lanes)
        lanes_.for_each([&](const Lane& lane) {
            excused |= lane.health.circuit.is_down() && lane.down_by_itself;
        });
    return !excused && all_lanes_down();
}

// Not in an outage: nothing is written per event then.
bool Pipeline::may_move() const noexcept {
    return limits_.moves_waiting && !capabilities_.ordered && !paused_ && !is_outage() &&
           chains_.held() < max_held_keys;
}

void Pipeline::make_room(Micros now) {
    if (now < next_room_at_ || !may_move())
        return;
    const std::size_t before = records_.size();
    if (is_crowded())
        release_behind_suspects(now);
    lanes_.for_each([&](Lane& lane) {
        if (blocks(lane))
            release_lane(lane);
    });
    if (ledger_.span() > limits_.max_events * max_span_factor / 2)
        release_front();
    next_room_at_ = now + (records_.size() == before ? room_long_pause : room_pause);
}

// Suspects with the events behind them, until half of what may wait is left. Not those that failed
// for the first time, or have only just begun to hang: most of these are soon over, and a key that
// has left comes back more slowly than it was read. Where nothing else can go on, those that hang
// leave at once, and those that wait for long.
void Pipeline::release_behind_suspects(Micros now) {
    const bool starved = starves();
    const auto lasts = [&](const Request& request) {
        return request.hangs ? starved || now - request.sent_at >= lasting_request
                             : !request.fresh && now - request.sent_at >= lasting_request;
    };
    const auto enough = [&] { return !starved && chains_.held_back() <= most_waiting() / 2; };
    lanes_.for_each([&](Lane& lane) {
        const std::vector<Tracked*> suspects(lane.suspects.begin(), lane.suspects.end());
        for (Tracked* event : suspects)
            if (!enough() && (starved || event->next_of_key != nullptr) &&
                (event->failures >= failures_of_event || event->event->has_failed) &&
                (!starved || event->again_at > now + lasting_request))
                release(*event, event->failures / 2u);
    });
    for (Request* request : in_flight_)
        if (!enough() && lasts(*request) &&
            (starved || request->events.back()->tracked->next_of_key != nullptr))
            move(*request);
}

void Pipeline::release_lane(Lane& lane) {
    const auto steps = static_cast<unsigned>(
        std::min<std::uint64_t>(lane.health.circuit.failures(), 20));
    while (lane.fresh.size() > kept_for_probes) {
        Tracked& event = *lane.fresh.front();
        lanes_.pop_front(lane);
        release(event, steps);
    }
    while (lane.suspects.size() > kept_for_probes)
        release(**lane.suspects.begin(), steps);
}

// One event must not keep the log: a crash would repeat all that overtook it.
void Pipeline::release_front() {
    Tracked* first = ledger_.first_unsettled();
    if (first == nullptr)
        return;
    if (first->place == Tracked::Place::pausing) {
        release(*first, first->failures);
    } else if (first->place == Tracked::Place::sent) {
        for (Request* request : in_flight_)
            if (std::find(request->events.begin(), request->events.end(), first->event) !=
                request->events.end())
                move(*request);
    }
}

// Into outbox.delivery, and what waits behind it. What is its own fault is an attempt.
void Pipeline::release(Tracked& event, unsigned steps) {
    if (event.place == Tracked::Place::pausing)
        lanes_.remove_suspect(event);
    event.place = Tracked::Place::leaving;
    records_.push_back({.event = event.event,
                        .kind = event.blamed ? Record::Kind::refused : Record::Kind::released,
                        .error = event.lane->last_error,
                        .steps = steps});
    hold_behind(event);
}

// The events of a request go on as retries that are under way.
void Pipeline::move(Request& request) {
    for (std::size_t i = 0, end; i < request.events.size(); i = end) {
        for (end = i + 1; end < request.events.size() && request.events[end]->tracked->chained;)
            end++;
        Tracked& head = *request.events[i]->tracked;
        if (head.event->retry)
            continue;
        for (std::size_t j = i; j < end; j++) {
            Event& event = *request.events[j];
            records_.push_back({.event = &event, .kind = Record::Kind::moved});
            event.retry = true;
        }
        if (head.event->ordering_key.empty())
            continue;
        chains_.hold(head.event->ordering_key);
        park_linked(chains_.cut_behind(head, *request.events[end - 1]->tracked));
    }
}

// ---------------------------------------------------------------------------------------------
// What is to be seen
// ---------------------------------------------------------------------------------------------

std::optional<Micros> Pipeline::oldest() const noexcept {
    const Tracked* first = ledger_.first_unsettled();
    if (first == nullptr)
        return std::nullopt;
    return first->event->occurred_at;
}

// Of the lanes that have events; false when there is none.
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
    lanes_.for_each([&](const Lane& lane) {
        failures = std::max(failures, lane.health.circuit.failures());
    });
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
    bool throttled = false;
    lanes_.for_each([&](const Lane& lane) {
        throttled |= lane.members > 0 &&
                     (lane.health.flow.is_lowered() || now < lane.health.not_before);
    });
    return throttled;
}

double Pipeline::request_limit() const noexcept {
    double least = 0;
    lanes_.for_each([&](const Lane& lane) {
        const FlowLimit& flow = lane.health.flow;
        if (flow.is_lowered() && (least == 0 || flow.limit() < least))
            least = flow.limit();
    });
    return least;
}

}  // namespace outbox
