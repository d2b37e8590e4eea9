#include "core/endpoint_answer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace outbox {

// Longest pause before the sink asks again for an endpoint.
static constexpr double max_pause = 3600;

static Micros pause_of(std::optional<double> seconds_left) {
    if (!seconds_left || !std::isfinite(*seconds_left))
        return -1;
    return static_cast<Micros>(std::clamp(*seconds_left, 0.0, max_pause) * 1e6);
}

static std::optional<Snapshot> snapshot_of(std::string_view text) {
    return text.empty() ? std::nullopt : Snapshot::parse(text);
}

EventBlock& EndpointAnswerBuilder::block() {
    if (answer_.blocks.empty())
        next_block();
    return *answer_.blocks.back();
}

void EndpointAnswerBuilder::next_block() {
    answer_.blocks.push_back(std::make_unique<EventBlock>());
}

EndpointFetched& EndpointAnswerBuilder::fetched_for(std::string_view endpoint) {
    if (!open_ || answer_.fetched.back().name != endpoint) {
        answer_.fetched.emplace_back().name = endpoint;
        open_ = true;
    }
    return answer_.fetched.back();
}

void EndpointAnswerBuilder::add(const EndpointAnswerRow& row) {
    if (row.kind == "known") {
        answer_.known = row.snapshot;
        answer_.count = static_cast<std::size_t>(std::max<std::int64_t>(row.count, 0));
    } else if (row.kind == "endpoint") {
        answer_.changed.push_back({.name = std::string(row.endpoint),
                                   .url = std::string(row.url),
                                   .topics = std::string(row.topics),
                                   .secret_name = std::string(row.secret_name),
                                   .changed_by = row.xid,
                                   .paused = row.paused,
                                   .behind = row.behind,
                                   .wanted = !row.behind && row.due_in.has_value(),
                                   .since = snapshot_of(row.snapshot)});
    } else if (row.kind == event) {
        EndpointFetched& fetched = fetched_for(row.endpoint);
        fetched.events.push_back(&block().events().back());
        fetched.attempts.push_back(row.attempts);
    } else if (row.kind == "fetched") {
        EndpointFetched& fetched = fetched_for(row.endpoint);
        fetched.caught_up = snapshot_of(row.snapshot);
        fetched.due_in = pause_of(row.due_in);
        open_ = false;
    }
}

EndpointAnswer EndpointAnswerBuilder::take() {
    open_ = false;
    return std::exchange(answer_, {});
}

}  // namespace outbox
