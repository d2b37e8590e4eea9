#include "sinks/http/endpoint_directory.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "core/topic_filter.hpp"

namespace outbox {

// The cache is emptied when it has this many topics, or this many endpoints of topics.
static constexpr std::size_t max_cached_topics = 10'000;
static constexpr std::size_t max_cached = 1'000'000;

static std::size_t bytes_of(const EndpointRow& row) noexcept {
    const auto commas = std::count(row.topics.begin(), row.topics.end(), ',');
    return row.name.size() + row.url.size() + row.topics.size() + row.secret_name.size() +
           endpoint_topic_size * (1 + static_cast<std::size_t>(commas));
}

EndpointLane* EndpointDirectory::find(std::string_view name) noexcept {
    const auto found = lanes_.find(name);
    return found == lanes_.end() ? nullptr : found->second.get();
}

EndpointLane& EndpointDirectory::add(std::unique_ptr<EndpointLane> lane) {
    indexed_ = false;
    EndpointLane& added = *lane;
    bytes_ += bytes_of(added.row);
    lanes_.emplace(added.row.name, std::move(lane));
    return added;
}

std::unique_ptr<EndpointLane> EndpointDirectory::remove(std::string_view name) {
    indexed_ = false;
    const auto found = lanes_.find(name);
    std::unique_ptr<EndpointLane> lane = std::move(found->second);
    lanes_.erase(found);
    bytes_ -= bytes_of(lane->row);
    return lane;
}

bool EndpointDirectory::has_room_for(const EndpointRow& row) const noexcept {
    const auto known = lanes_.find(row.name);
    if (known == lanes_.end())
        return lanes_.size() < max_endpoints && bytes_ + bytes_of(row) <= max_bytes;
    return bytes_ - bytes_of(known->second->row) + bytes_of(row) <= max_bytes;
}

void EndpointDirectory::update(EndpointLane& lane, EndpointRow&& row) {
    if (row.topics != lane.row.topics)
        indexed_ = false;
    bytes_ -= bytes_of(lane.row);
    lane.row = std::move(row);
    bytes_ += bytes_of(lane.row);
}

const EndpointDirectory::Lanes& EndpointDirectory::of_topic(std::string_view topic) {
    if (!indexed_)
        make_index();
    const auto known = cache_.find(topic);
    if (known != cache_.end())
        return known->second;
    Lanes lanes = found(topic);
    if (cache_.size() >= max_cached_topics || cached_ + lanes.size() > max_cached) {
        cache_.clear();
        cached_ = 0;
    }
    cached_ += lanes.size();
    return cache_.emplace(topic, std::move(lanes)).first->second;
}

void EndpointDirectory::make_index() {
    by_topic_.clear();
    patterns_.clear();
    cache_.clear();
    cached_ = 0;
    for (auto& [name, lane] : lanes_)
        index(*lane);
    indexed_ = true;
}

// An empty pattern takes nothing: the table does not allow it.
void EndpointDirectory::index(EndpointLane& lane) {
    std::string_view list = lane.row.topics;
    while (true) {
        const std::size_t comma = list.find(',');
        const std::string_view pattern = trim(list.substr(0, comma));
        if (pattern.find('*') != std::string_view::npos)
            patterns_.emplace_back(pattern, &lane);
        else if (!pattern.empty())
            by_topic_[std::string(pattern)].push_back(&lane);
        if (comma == std::string_view::npos)
            return;
        list.remove_prefix(comma + 1);
    }
}

EndpointDirectory::Lanes EndpointDirectory::found(std::string_view topic) const {
    Lanes lanes;
    if (const auto exact = by_topic_.find(topic); exact != by_topic_.end())
        lanes = exact->second;
    for (const auto& [pattern, lane] : patterns_)
        if (pattern_matches(pattern, topic))
            lanes.push_back(lane);
    std::sort(lanes.begin(), lanes.end());
    lanes.erase(std::unique(lanes.begin(), lanes.end()), lanes.end());
    return lanes;
}

}  // namespace outbox
