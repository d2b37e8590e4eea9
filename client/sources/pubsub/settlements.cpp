#include "pubsub/settlements.hpp"

#include <algorithm>
#include <cmath>

namespace inbox::pubsub {

using namespace std::chrono_literals;

// Pause for more settlements to gather. Extensions do not wait, and nacks are rare.
static constexpr Duration gather_time = 10ms;

static constexpr Duration first_settlement_pause = 200ms;
static constexpr Duration max_settlement_pause = 30s;

// Time after which a settlement is no longer sent. A lost extension is followed by the next one,
// and a message whose nack was lost comes again when its lease ends.
static Duration patience(Action action) {
    return action == Action::ack ? Duration(10min) : Duration(1min);
}

void Settlements::add(Action action, const std::string& ack_id, SteadyTime now) {
    const Duration wait = action == Action::extend ? Duration::zero() : gather_time;
    waiting(action).push_back({ack_id, now + wait});
}

SteadyTime Settlements::due() const {
    SteadyTime due = SteadyTime::max();
    for (const Action action : {Action::ack, Action::nack, Action::extend}) {
        const auto& queue = waiting_[static_cast<int>(action)];
        if (!queue.empty() && !busy_[lane(action)])
            due = std::min(due, queue.size() < max_ids ? queue.front().due : SteadyTime::min());
    }
    for (const auto& [time, batch] : later_)
        if (!busy_[lane(batch.action)]) {
            due = std::min(due, time);
            break;
        }
    return due;
}

std::optional<Batch> Settlements::next(SteadyTime now) {
    for (auto at = later_.begin(); at != later_.end() && at->first <= now; ++at) {
        if (busy_[lane(at->second.action)])
            continue;
        Batch batch = std::move(at->second);
        later_.erase(at);
        busy_[lane(batch.action)] = true;
        return batch;
    }
    for (const Action action : {Action::extend, Action::ack, Action::nack})
        if (std::optional<Batch> batch = take(action, now))
            return batch;
    return std::nullopt;
}

std::optional<Batch> Settlements::take(Action action, SteadyTime now) {
    auto& queue = waiting(action);
    if (queue.empty() || busy_[lane(action)] || (queue.front().due > now && queue.size() < max_ids))
        return std::nullopt;
    Batch batch{.action = action, .since = now};
    std::size_t bytes = 0;
    while (!queue.empty() && batch.ack_ids.size() < max_ids) {
        bytes += queue.front().ack_id.size() + 4;  // with tag and length
        if (bytes > max_bytes && !batch.ack_ids.empty())
            break;
        batch.ack_ids.push_back(std::move(queue.front().ack_id));
        queue.pop_front();
    }
    busy_[lane(action)] = true;
    return batch;
}

bool Settlements::again(Batch batch, SteadyTime now, double part) {
    if (now - batch.since >= patience(batch.action))
        return false;
    const double longest = std::chrono::duration<double>(max_settlement_pause).count();
    const double pause =
        std::min(longest, std::ldexp(std::chrono::duration<double>(first_settlement_pause).count(),
                                     batch.attempts++));
    const std::chrono::duration<double> jittered(pause * (0.5 + part / 2));
    later_.emplace(now + std::chrono::duration_cast<Duration>(jittered), std::move(batch));
    return true;
}

void Settlements::hurry(SteadyTime now) {
    for (auto& queue : waiting_)
        for (Waiting& each : queue)
            each.due = std::min(each.due, now);
    std::multimap<SteadyTime, Batch> all;
    for (auto& [time, batch] : later_)
        all.emplace(std::min(time, now), std::move(batch));
    later_ = std::move(all);
}

bool Settlements::idle() const {
    return std::all_of(waiting_.begin(), waiting_.end(),
                       [](auto& queue) { return queue.empty(); }) &&
           later_.empty() && !busy_[0] && !busy_[1];
}

void Settlements::clear() {
    for (auto& queue : waiting_)
        queue.clear();
    later_.clear();
}

}  // namespace inbox::pubsub
