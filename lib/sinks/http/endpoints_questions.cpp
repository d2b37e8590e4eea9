// Questions of the sink to the database.
#include <algorithm>

#include "sinks/http/endpoints_sink.hpp"

namespace outbox {

// Several endpoints often fail at the same time, so the facts for a question are gathered for this
// long.
static constexpr Micros gather = milliseconds(50);
static constexpr Micros after_failure = milliseconds(100);
// An endpoint that keeps its copies because too many fail may leave later.
static constexpr Micros try_again = seconds(1);
// Limits of one question. The next question tells the rest.
static constexpr std::size_t max_told = 500;
static constexpr std::size_t max_question_bytes = 1024 * 1024;
static constexpr std::size_t max_fetched = 20;

void EndpointsSink::to_tell(EndpointLane& lane) {
    if (std::exchange(lane.to_tell, true))
        return;
    if (to_tell_.empty())
        tell_at_ = clock_.now() + gather;
    to_tell_.push_back(&lane);
}

void EndpointsSink::to_fetch(EndpointLane& lane) {
    if (!std::exchange(lane.to_fetch, true))
        to_fetch_.push_back(&lane);
}

Micros EndpointsSink::due() const noexcept {
    if (under_way_)
        return never;
    Micros due = to_tell_.empty() ? never : tell_at_;
    const bool fetches = !paused_ && !to_fetch_.empty() && copies_.may_fetch();
    if (looks_ || in_doubt_ || fetches)
        due = 0;
    return std::max(due, not_before_);
}

std::string EndpointsSink::ask(const EndpointPlace& place) {
    const Micros now = clock_.now();
    EndpointQuestion question;
    asked_at_ = now;
    looks_ = false;
    troubled_.reset();
    if (in_doubt_)
        ask_again(question, now);
    tell_all(question, now);
    fetch_some(question, now);
    under_way_ = true;
    in_doubt_ = false;
    listed_ = known_.empty();
    return question.text(known_, place);
}

// The last question may have had an effect, so this one leaves nothing out, even above the limits.
void EndpointsSink::ask_again(EndpointQuestion& question, Micros now) {
    std::vector<EndpointLane*> told, leaving;
    told.swap(told_);
    for (EndpointLane* lane : told)
        if (lane->mode == LaneMode::leaving)
            leaving.push_back(lane);
    take_undecided(leaving, now);
    for (EndpointLane* lane : told) {
        lane->health_changed |= std::exchange(lane->asked_health, false);
        tell(*lane, question, now);
    }
    for (const EndpointLane* lane : fetched_)
        question.fetch(*lane);
}

// Takes undecided events into the lists of these lanes, which lack them if the last question had no
// effect.
void EndpointsSink::take_undecided(const std::vector<EndpointLane*>& lanes, Micros now) {
    if (lanes.empty())
        return;
    for (EndpointLane* lane : lanes)
        lane->decided = true;
    for (std::size_t i = 0; i < undecided_.size(); i++) {
        const auto [event, source] = undecided_[i];
        for (EndpointLane* lane : directory_.of_topic(event->topic)) {
            if (!lane->decided || i < lane->undecided_from)
                continue;
            if (event->retry) {
                lane->kept.push_back(copies_.copy(*event, *source, 0));
            } else if (!lane->row.since || !lane->row.since->finished(event->xid)) {
                lane->copies.push_back(copies_.copy(*event, *source, lane->own_time(now)));
                lane->unsent++;
            }
        }
    }
    for (EndpointLane* lane : lanes) {
        lane->decided = false;
        lane->undecided_from = undecided_.size();
    }
}

void EndpointsSink::tell_all(EndpointQuestion& question, Micros now) {
    std::vector<EndpointLane*> left;
    for (EndpointLane* lane : to_tell_) {
        if (told_.size() >= max_told || question.size() >= max_question_bytes) {
            left.push_back(lane);
            continue;
        }
        lane->to_tell = false;
        if (!lane->removed)
            tell(*lane, question, now);
    }
    to_tell_.swap(left);
    tell_at_ = to_tell_.empty() ? never : now;
}

void EndpointsSink::tell(EndpointLane& lane, EndpointQuestion& question, Micros now) {
    if (lane.mode == LaneMode::live && should_leave(lane, now))
        leave(lane, now);
    tell_health(lane, question, now);
    if (lane.mode == LaneMode::leaving)
        question.fall_back(lane);
    if (lane.mode != LaneMode::live) {
        if (!lane.settled.empty())
            question.settled(lane);
        if (!lane.refused.empty())
            question.refused(lane);
        if (lane.gone)
            question.gone(lane);
        lane.asked_settled = lane.settled.size();
        lane.asked_refused = lane.refused.size();
        lane.asked_gone = lane.gone.has_value();
    }
    if (std::find(told_.rbegin(), told_.rend(), &lane) == told_.rend())
        told_.push_back(&lane);
}

void EndpointsSink::leave(EndpointLane& lane, Micros now) {
    if (!may_leave(lane)) {
        lane.leaves_after = now + try_again;
        return;
    }
    lane.mode = LaneMode::leaving;
    lane.undecided_from = undecided_.size();
    if (lane.is_troubled())
        ++*troubled_;
}

// A live endpoint that fails may work again in a moment. That is told only if it stays live for
// longer, or if the database believes otherwise.
void EndpointsSink::tell_health(EndpointLane& lane, EndpointQuestion& question, Micros now) {
    const bool fails = lane.health.is_failing();
    const bool lasts = fails && now >= lane.health.failing_since() + patience;
    if (!lane.health_changed ||
        !(lane.mode != LaneMode::live || lasts || (!fails && lane.failure_told)))
        return;
    if (fails)
        question.fails(lane,
                       clock_.unix_now() + std::max<Micros>(0, lane.health.not_before() - now));
    else
        question.works(lane);
    lane.health_changed = false;
    lane.asked_health = true;
    lane.failure_told = fails;
}

bool EndpointsSink::may_leave(const EndpointLane& lane) {
    if (!troubled_)
        troubled_ = count_troubled();
    return !lane.is_troubled() || lane.is_paused() || lane.row.wanted || !lane.refused.empty() ||
           *troubled_ < max_troubled;
}

std::size_t EndpointsSink::count_troubled() {
    std::size_t count = 0;
    directory_.for_each([&](const EndpointLane& lane) {
        count += lane.mode != LaneMode::live && lane.is_troubled() && !lane.is_paused();
    });
    return count;
}

void EndpointsSink::fetch_some(EndpointQuestion& question, Micros now) {
    while (!paused_ && !to_fetch_.empty() && fetched_.size() < max_fetched && copies_.may_fetch()) {
        EndpointLane& lane = *to_fetch_.front();
        to_fetch_.pop_front();
        lane.to_fetch = false;
        if (lane.removed)
            continue;
        if (!wants_fetch(lane, now)) {
            turns_.arm(lane, next_look(lane, now));
            continue;
        }
        if (lane.to_tell)  // not told, because the question has become too long
            tell(lane, question, now);
        lane.mode = LaneMode::fetching;
        lane.undecided_from = undecided_.size();
        lane.has_news = false;
        question.fetch(lane);
        fetched_.push_back(&lane);
    }
}

void EndpointsSink::failed() noexcept {
    under_way_ = false;
    in_doubt_ = true;
    not_before_ = clock_.now() + after_failure;
}

}  // namespace outbox
