#include "core/relay/relay.hpp"

#include <algorithm>
#include <utility>

namespace outbox {

Relay::Relay(const Clock& clock, DeliveryStats& stats, std::uint64_t seed)
    : clock_(clock), stats_(stats), seed_(seed), poll_(1, 1, seed) {
    set_intervals({});
}

Relay::~Relay() {
    stop();
}

void Relay::set_intervals(const Intervals& intervals) noexcept {
    poll_.set_limits(intervals.poll_min, intervals.poll_max);
    longest_poll_ = intervals.poll_max;
    save_interval_ = intervals.save;
    next_look_ = 0;
}

void Relay::start(std::unique_ptr<Sink> sink, const Pipeline::Limits& limits) {
    stop();
    stats_.continue_from(cursor_.published, cursor_.failures);
    counted_at_save_ = cursor_.published + cursor_.failures;
    earlier_outage_ = outage_at_save_ = cursor_.failing_since;
    failing_since_ = 0;
    started_at_ = clock_.now();
    delivered_at_start_ = stats_.delivered;
    frontier_ = cursor_.done;
    settled_before_ = {};
    if (cursor_.foreign) {
        // Nothing is known about the transactions of this cluster, so the whole log is read.
        frontier_ = Snapshot{};
        settled_before_ = {true, cursor_.done, cursor_.position};
    }
    if (cursor_.upto)
        settled_before_ = {true, *cursor_.upto, cursor_.position};
    Pipeline::Limits own = limits;
    own.live_after = cursor_.live_after;
    pipeline_ = std::make_unique<Pipeline>(std::move(sink), own, clock_, stats_, seed_);
    transactions_ = pipeline_->transactions();
    endpoints_ = pipeline_->endpoints();
    endpoints_look_ = clock_.now() + longest_poll_;
    recovered_ = transactions_ == nullptr;
    recovery_trouble_.clear();
}

void Relay::stop() noexcept {
    if (block_ != nullptr)
        pipeline_->put_back(std::exchange(block_, nullptr));
    pipeline_.reset();
    transactions_ = nullptr;
    endpoints_ = nullptr;
    noted_.clear();
    recovered_ = true;
    open_windows_.clear();
    settled_in_front_ = {};
    upto_is_front_ = false;
    in_window_ = false;
    reads_ = false;
    next_look_ = 0;
    step_ = Step::recover;
}

void Relay::follow_operator(bool paused) noexcept {
    pipeline_->pause(paused);
    retries_due_ = 0;
    if (endpoints_ != nullptr)
        endpoints_->look_again();
}

void Relay::follow_resumes(std::int64_t resumed) noexcept {
    if (std::exchange(cursor_.resumed, resumed) != resumed)
        pipeline_->forget_waits();
}

// ---------------------------------------------------------------------------------------------
// Next step
// ---------------------------------------------------------------------------------------------

Relay::Wish Relay::next(bool committed) {
    switch (step_) {
        case Step::recover:
            step_ = Step::consult;
            if (is_due(recover_due()))
                return Wish::recover;
            [[fallthrough]];
        case Step::consult:  // before events are read that came after a change of an endpoint
            step_ = Step::read;
            if (is_due(consult_due()))
                return Wish::consult;
            [[fallthrough]];
        case Step::read:
            step_ = Step::take_retries;
            if (is_due(look_due(committed)))
                return Wish::read;
            [[fallthrough]];
        case Step::take_retries:
            step_ = Step::send;
            if (is_due(retry_due()))
                return Wish::take_retries;
            [[fallthrough]];
        case Step::send:
            step_ = Step::pause;
            send();
            [[fallthrough]];
        case Step::pause:
            step_ = Step::note;
            if (is_due(pause_due()))
                return Wish::pause;
            [[fallthrough]];
        case Step::note:
            step_ = Step::record;
            if (is_due(note_due()))
                return Wish::note;
            [[fallthrough]];
        case Step::record:
            step_ = Step::save;
            if (is_due(record_due()))
                return Wish::record;
            [[fallthrough]];
        case Step::save:
            step_ = Step::wait;
            settle();
            if (is_due(save_due()))
                return Wish::save;
            [[fallthrough]];
        case Step::wait:
            step_ = Step::recover;
    }
    return Wish::wait;
}

Micros Relay::deadline(bool committed) const noexcept {
    return std::min({pipeline_->deadline(), recover_due(), pause_due(), note_due(), consult_due(),
                     save_due(), look_due(committed), record_due(), retry_due(),
                     condition_log_.deadline()});
}

Micros Relay::pause_due() const noexcept {
    return pipeline_->gone().empty() ? never : not_before_;
}

void Relay::send() {
    pipeline_->step();
    if (pipeline_->take_recovered()) {
        hurries_ = true;
        retries_due_ = 0;
    }
    if (!recovered_ && recovery_trouble_ != transactions_->trouble()) {
        recovery_trouble_ = transactions_->trouble();
        if (!recovery_trouble_.empty())
            stats_.failed();
    }
}

// ---------------------------------------------------------------------------------------------
// Exactly once
// ---------------------------------------------------------------------------------------------

Micros Relay::recover_due() const noexcept {
    return !recovered_ && transactions_->is_known() ? not_before_ : never;
}

void Relay::recovered() {
    noted_.recovered(transactions_->committed());
    recovered_ = true;
}

Micros Relay::note_due() const noexcept {
    return recovered_ && transactions_ != nullptr && transactions_->to_note() != nullptr
               ? not_before_
               : never;
}

void Relay::noted() {
    noted_.noted(*transactions_->to_note());
    transactions_->noted();
}

// ---------------------------------------------------------------------------------------------
// Endpoints
// ---------------------------------------------------------------------------------------------

Micros Relay::consult_due() const noexcept {
    return endpoints_ == nullptr ? never : std::max(endpoints_->due(), not_before_);
}

Relay::Wish Relay::next_beside_question(bool committed) {
    if (is_due(look_due(committed)))
        return Wish::read;
    send();
    return Wish::wait;
}

Micros Relay::deadline_beside_question(bool committed) const noexcept {
    return std::min(pipeline_->deadline(), look_due(committed));
}

// Not every change of outbox.endpoint wakes a relay: COMMIT PREPARED does not.
void Relay::look_at_endpoints() noexcept {
    if (endpoints_ == nullptr || !is_due(endpoints_look_))
        return;
    endpoints_look_ = clock_.now() + longest_poll_;
    endpoints_->look_again();
}

// Up to here the sink has the events of the log, or they were settled before: the last event that it
// was given, in the window of this event. The windows before are complete, because the sink gets the
// events in the order of the log.
EndpointPlace Relay::place() const {
    std::uint64_t xid = 0;
    std::int64_t position = 0;
    if (!endpoints_->last_event(xid, position) || (!cursor_.foreign && cursor_.done.finished(xid)))
        return place_of_cursor();
    const Snapshot* start = nullptr;
    for (const Snapshot& end : open_windows_) {
        if (end.finished(xid)) {
            const bool is_front = start == nullptr;
            Snapshot done = !is_front ? *start : cursor_.foreign ? Snapshot{} : cursor_.done;
            // The earlier relay had come further, but in an earlier snapshot. Events that have
            // committed since are repeated, which are few.
            if (is_front && settled_in_front_.any && position <= settled_in_front_.position)
                return {std::move(done), settled_in_front_.in, settled_in_front_.position};
            return {std::move(done), end, position};
        }
        start = &end;
    }
    return place_of_cursor();
}

// The snapshots of another cluster say nothing about transactions of this one, but they say which
// restored events were settled: see settled_before().
EndpointPlace Relay::place_of_cursor() const {
    if (cursor_.foreign)
        return {Snapshot{}, cursor_.upto ? cursor_.upto : cursor_.done, cursor_.position};
    return {cursor_.done, cursor_.upto, cursor_.position};
}

// ---------------------------------------------------------------------------------------------
// Reading
// ---------------------------------------------------------------------------------------------

Micros Relay::look_due(bool committed) const noexcept {
    if (!recovered_ || reads_ || !pipeline_->has_room() || pipeline_->paused())
        return never;
    if (in_window_)
        return read_again_;
    return std::max(committed ? gather_until_ : next_look_, read_again_);
}

void Relay::window_found(const Snapshot& end, bool several) {
    reads_ = false;
    pipeline_->open_window();
    noted_.window_opened();
    if (open_windows_.empty())
        settled_in_front_ = std::move(settled_before_);
    open_windows_.push_back(end);
    frontier_ = end;
    settled_before_ = {};
    in_window_ = true;
    gather_until_ = several ? clock_.now() + gather_time : 0;
    poll_.reset();
}

// An empty window moves the frontier and, if nothing is in flight, the cursor. Neither is worth a
// write.
void Relay::nothing_found(const Snapshot& end) {
    reads_ = false;
    noted_.nothing_found();
    frontier_ = end;
    settled_before_ = {};
    if (open_windows_.empty()) {
        cursor_.done = frontier_;
        cursor_.upto.reset();
        cursor_.foreign = false;
    }
    next_look_ = clock_.now() + poll_.next();
    look_at_endpoints();
}

EventBlock& Relay::block() {
    if (block_ == nullptr)
        block_ = pipeline_->take_block();
    return *block_;
}

void Relay::reading_failed(Micros pause) noexcept {
    reads_ = false;
    read_again_ = clock_.now() + pause;
}

void Relay::block_read(bool end_of_window, std::int64_t last_position) {
    reads_ = false;
    if (block_->empty())
        pipeline_->put_back(std::exchange(block_, nullptr));
    else
        pipeline_->admit(std::exchange(block_, nullptr));
    if (!end_of_window)
        return;
    in_window_ = false;
    next_look_ = clock_.now() + poll_.next();
    pipeline_->close_window(last_position);
}

// ---------------------------------------------------------------------------------------------
// Saving
// ---------------------------------------------------------------------------------------------

// They must have left outbox.delivery before the row of their transaction may go.
static bool has_confirmed_retries(const std::vector<Record>& records) noexcept {
    return std::any_of(records.begin(), records.end(),
                       [](const Record& record) { return record.kind == Record::Kind::confirmed; });
}

void Relay::settle() {
    for (std::size_t n = pipeline_->take_settled_windows(); n > 0; n--) {
        cursor_.done = std::move(open_windows_.front());
        cursor_.upto.reset();
        cursor_.position = std::max(cursor_.position, pipeline_->highest_settled());
        cursor_.foreign = false;
        open_windows_.pop_front();
        settled_in_front_ = {};
        upto_is_front_ = false;
        noted_.window_settled();
        unsaved_ = true;
    }
    if (const std::optional<std::int64_t> position = pipeline_->front_position())
        settle_front(*position);
    if (transactions_ != nullptr && !has_confirmed_retries(pipeline_->records()))
        noted_.advance(transactions_->committed(), upto_is_front_ ? cursor_.position : -1);
}

// After a restart in the middle of a window, events below the saved position may have committed
// since. The cursor cannot say that both these and those above are settled. Usually it goes back: a
// crash would then repeat some events. But it never goes back behind a transaction that was
// forgotten because the cursor had passed it.
void Relay::settle_front(std::int64_t position) {
    const bool goes_back = cursor_.upto && position < cursor_.position;
    if ((cursor_.upto && position == cursor_.position) || (goes_back && transactions_ != nullptr))
        return;
    if (!goes_back && !upto_is_front_) {
        cursor_.upto = open_windows_.front();
        upto_is_front_ = true;
    }
    cursor_.position = position;
    unsaved_ = true;
}

bool Relay::flush_is_due() const noexcept {
    return stats_.delivered - delivered_at_flush_ >= max_unsaved_events;
}

bool Relay::has_something_to_save() const noexcept {
    return ((unsaved_ || noted_.any_passed()) && may_save_cursor()) ||
           !pipeline_->receipts().empty();
}

bool Relay::has_counters_to_save() const noexcept {
    return may_save_cursor() &&
           (stats_.all_delivered() + stats_.all_failures() != counted_at_save_ ||
            outage_to_save() != outage_at_save_);
}

bool Relay::must_save_to_leave() const noexcept {
    return has_something_to_save() || has_counters_to_save();
}

// While nothing is settled, no cursor is saved. So the start of an outage that lasts is saved by
// itself, and a crash does not reset it. So is its end, if no later event saves the cursor.
Micros Relay::outage_due() const noexcept {
    if (outage_to_save() == outage_at_save_ || !may_save_cursor())
        return never;
    return outage_changed_at_ + long_outage;
}

Micros Relay::save_due() const noexcept {
    Micros due = outage_due();
    if (has_something_to_save())
        due = std::min(due, flush_is_due() ? 0 : saved_at_ + save_interval_);
    return due == never ? never : std::max(due, not_before_);
}

void Relay::saved() noexcept {
    if (may_save_cursor())
        noted_.forgotten();
    counted_at_save_ = stats_.all_delivered() + stats_.all_failures();
    outage_at_save_ = outage_to_save();
    pipeline_->receipts_taken();
    unsaved_ = false;
    saved_at_ = clock_.now();
    if (flush_is_due())
        delivered_at_flush_ = stats_.delivered;
}

// ---------------------------------------------------------------------------------------------
// Trouble
// ---------------------------------------------------------------------------------------------

bool Relay::has_records() const noexcept {
    return pipeline_->has_records();
}

Micros Relay::record_due() const noexcept {
    if (!has_records())
        return never;
    const bool is_urgent = pipeline_->records().size() >= many_records || pipeline_->starves();
    return std::max(not_before_, is_urgent ? 0 : recorded_at_ + trouble_pause);
}

void Relay::recorded(Micros next_retry) {
    retries_due_ = next_retry;
    pipeline_->recorded();
    recorded_at_ = clock_.now();
}

Micros Relay::retry_due() const noexcept {
    if (!recovered_ || !pipeline_->wants_retries())
        return never;
    return std::max({retries_due_, not_before_, retries_taken_at_ + trouble_pause});
}

void Relay::retries_taken(std::size_t count, Micros next_retry) noexcept {
    const Micros now = clock_.now();
    retries_due_ = hurries_ ? 0 : next_retry;
    retries_taken_at_ = count < many_retries ? now : 0;
    if (count == 0 && !hurries_)  // due rows wait for something before them
        retries_due_ = std::max(retries_due_, now + retry_pause);
}

// ---------------------------------------------------------------------------------------------
// Condition
// ---------------------------------------------------------------------------------------------

bool Relay::leaves_endpoints_out() const noexcept {
    return endpoints_ != nullptr && !endpoints_->left_out().empty();
}

bool Relay::fails_partly() const noexcept {
    return pipeline_->lanes_down() > 0 || leaves_endpoints_out();
}

Condition::Kind Relay::condition() const noexcept {
    const bool stuck = (pipeline_->only_suspects_left() && !pipeline_->is_throttled()) ||
                       (!recovered_ && !recovery_trouble_.empty());
    return pipeline_->failures() > 0 || stuck ? Condition::Kind::failing
           : fails_partly()                   ? Condition::Kind::partly
           : pipeline_->is_throttled()        ? Condition::Kind::throttled
                                              : Condition::Kind::works;
}

const std::string& Relay::reason() const noexcept {
    if (!recovered_)
        return recovery_trouble_;
    if (condition() != Condition::Kind::partly)
        return pipeline_->last_error();
    return pipeline_->lanes_down() > 0 ? pipeline_->lane_error() : endpoints_->left_out();
}

Micros Relay::next_attempt() const noexcept {
    const Condition::Kind kind = condition();
    if ((failing_since_ == 0 && kind != Condition::Kind::throttled) ||
        (leaves_endpoints_out() && kind == Condition::Kind::partly))
        return 0;
    const Micros next = pipeline_->next_attempt();
    return next == never ? 0 : clock_.unix_now() + std::max<Micros>(next - clock_.now(), 0);
}

Micros Relay::outage_to_save() const noexcept {
    return failing_since_ != 0 ? failing_since_ : earlier_outage_;
}

// Other lanes may deliver at once after a restart, and it takes some attempts to find the one that
// still fails. So the earlier outage is over when events have been delivered and this time has passed.
bool Relay::earlier_outage_is_over() const noexcept {
    return stats_.delivered != delivered_at_start_ && clock_.now() - started_at_ >= long_outage;
}

bool Relay::line_is_due() {
    const Condition::Kind kind = condition();
    if (kind != Condition::Kind::failing && kind != Condition::Kind::partly) {
        if (failing_since_ != 0)
            outage_changed_at_ = clock_.now();
        failing_since_ = 0;
        if (earlier_outage_is_over())
            earlier_outage_ = 0;
    } else if (failing_since_ == 0) {
        outage_changed_at_ = clock_.now();
        failing_since_ =
            earlier_outage_ != 0 ? std::exchange(earlier_outage_, 0) : clock_.unix_now();
    }
    return condition_log_.observe(clock_.now(), kind,
                                  kind == Condition::Kind::works ? std::string_view() : reason());
}

}  // namespace outbox
