#include "pubsub/leases.hpp"

#include <algorithm>
#include <map>

namespace inbox::pubsub {

using std::chrono::seconds;

void AckTimes::add(Duration time) {
    const auto rounded = std::chrono::ceil<seconds>(std::max(time, Duration::zero())).count();
    counts_[std::min<std::size_t>(rounded, longest)]++;
    if (++total_ < 10'000)
        return;
    total_ = 0;
    for (unsigned& count : counts_)
        total_ += count /= 2;
}

seconds AckTimes::p99() const {
    unsigned beyond = 0;
    for (std::size_t time = longest; time > 0; time--) {
        beyond += counts_[time];
        if (beyond * 100ull > total_)
            return seconds(time);
    }
    return seconds(0);
}

seconds Leases::deadline() const {
    const seconds least = exactly_once_ ? seconds(60) : limits_.min_deadline;
    return std::min(std::max({ack_times_.p99(), least, limits_.min_deadline}),
                    limits_.max_deadline);
}

// Extends between a third and two thirds of the lease, so that there is time for a second attempt.
// The random part keeps consumers that started together from sending at the same time.
void Leases::plan_round(SteadyTime now, double part) {
    const std::chrono::duration<double> pause = deadline() * (1 + part) / 3;
    next_round_ = std::min(next_round_, now + std::chrono::duration_cast<Duration>(pause));
}

void Leases::add(const std::string& ack_id, SteadyTime now, double part) {
    held_.try_emplace(ack_id, Lease{now, next_number_++});
    plan_round(now, part);
}

bool Leases::acked(const std::string& ack_id, SteadyTime now) {
    const auto found = held_.find(ack_id);
    if (found == held_.end())
        return false;
    ack_times_.add(now - found->second.since);
    held_.erase(found);
    return true;
}

std::vector<std::string> Leases::all() const {
    std::map<std::uint64_t, std::string> in_order;
    for (const auto& [ack_id, lease] : held_)
        in_order[lease.number] = ack_id;
    std::vector<std::string> ack_ids;
    for (auto& [number, ack_id] : in_order)
        ack_ids.push_back(std::move(ack_id));
    return ack_ids;
}

void Leases::clear() {
    held_.clear();
    next_round_ = SteadyTime::max();
}

Leases::Round Leases::begin_round(SteadyTime now, double part) {
    Round round;
    for (auto& [ack_id, lease] : held_) {
        if (lease.expired)
            continue;
        lease.expired = now - lease.since >= limits_.max_lease;
        if (lease.expired)
            round.expired++;
        else
            round.extend.push_back(ack_id);
    }
    next_round_ = SteadyTime::max();
    if (!round.extend.empty())
        plan_round(now, part);
    return round;
}

}  // namespace inbox::pubsub
