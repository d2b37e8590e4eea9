#include "sinks/http/endpoint_lane.hpp"

#include <algorithm>
#include <string_view>

#include "sinks/http/endpoint_requests.hpp"

namespace outbox {

// Looks no further: behind these, all keys wait.
static constexpr std::size_t max_looked_at = 64;
// After failures one of these keys is tried.
static constexpr std::size_t max_tried = 8;

static bool contains(const std::vector<std::string_view>& keys, std::string_view key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
}

EndpointCopy* next_copy(EndpointLane& lane) {
    std::vector<std::string_view> taken;
    for (const EndpointRequest* request : lane.in_flight)
        if (!request->key.empty())
            taken.push_back(request->key);
    std::vector<EndpointCopy*> found;
    const std::size_t enough = lane.health.is_failing() ? max_tried : 1;
    for (std::size_t i = 0; i < std::min(lane.copies.size(), max_looked_at); i++) {
        EndpointCopy& copy = lane.copies[i];
        if (copy.in_flight)
            continue;
        const std::string_view key = copy.event->ordering_key;
        if (!key.empty() && contains(taken, key))
            continue;
        if (!key.empty())
            taken.push_back(key);
        if (copy.refused)
            continue;
        found.push_back(&copy);
        if (found.size() == enough)
            break;
    }
    return found.empty() ? nullptr : found[lane.health.failures() % found.size()];
}

bool has_other_key(const EndpointLane& lane, std::string_view key) noexcept {
    return std::any_of(lane.copies.begin(), lane.copies.end(), [&](const EndpointCopy& copy) {
        return copy.event->ordering_key.empty() || copy.event->ordering_key != key;
    });
}

}  // namespace outbox
