#include "sinks/http/endpoint_health.hpp"

#include <algorithm>

namespace outbox {

static constexpr std::size_t max_suspects = 8;
// Without other events to compare with, an event that failed this often in a row is at fault.
static constexpr unsigned failures_of_the_only_event = 10;

void EndpointHealth::failed(Micros now, Micros unix_now, Micros started, Micros retry_after,
                            std::string error) {
    error_ = std::move(error);
    successes_ = 0;
    not_before_ = std::max(not_before_, now + retry_after);
    if (failures_ > 0 && started < last_failure_)
        return;
    if (failures_ == 0) {
        since_ = now;
        since_unix_ = unix_now;
    }
    failures_++;
    last_failure_ = now;
    not_before_ = std::max(not_before_, now + backoff_.next());
}

void EndpointHealth::worked(std::int64_t position) noexcept {
    failures_ = 0;
    successes_++;
    not_before_ = 0;
    backoff_.reset();
    std::erase_if(suspects_, [&](const Suspect& suspect) { return suspect.position == position; });
    for (Suspect& suspect : suspects_)
        suspect.others_were_taken = true;
}

void EndpointHealth::forget() noexcept {
    failures_ = successes_ = 0;
    not_before_ = 0;
    backoff_.reset();
    suspects_.clear();
}

bool EndpointHealth::blames_event(std::int64_t position, bool no_other_event) {
    const auto known =
        std::find_if(suspects_.begin(), suspects_.end(),
                     [&](const Suspect& suspect) { return suspect.position == position; });
    if (known == suspects_.end()) {
        if (suspects_.size() == max_suspects)
            suspects_.erase(suspects_.begin());
        suspects_.push_back({.position = position, .failures = 1});
        return false;
    }
    known->failures++;
    if (!known->others_were_taken &&
        !(no_other_event && known->failures >= failures_of_the_only_event))
        return false;
    suspects_.erase(known);
    return true;
}

}  // namespace outbox
