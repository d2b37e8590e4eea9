// The endpoints of a destination, and which of them take the events of a topic.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/limits.hpp"
#include "sinks/http/endpoint_lane.hpp"

namespace outbox {

class EndpointDirectory {
  public:
    using Lanes = std::vector<EndpointLane*>;

    // outbox_internal.add_to_total() refuses more endpoints at INSERT; the directory leaves out rows that
    // were not refused there. The bytes are three times those of the table, where a character may be
    // shorter than in UTF-8.
    static constexpr std::size_t max_bytes = 3 * max_endpoint_text_size;

    std::size_t size() const noexcept { return lanes_.size(); }
    EndpointLane* find(std::string_view name) noexcept;
    EndpointLane& add(std::unique_ptr<EndpointLane> lane);
    // Takes the lane out, and hands it over.
    std::unique_ptr<EndpointLane> remove(std::string_view name);
    // Returns whether there is room for the row, in place of the one that has its name.
    bool has_room_for(const EndpointRow& row) const noexcept;
    void update(EndpointLane& lane, EndpointRow&& row);

    // Returns the endpoints that take the topic. Valid until the next call.
    const Lanes& of_topic(std::string_view topic);

    template <class Function>
    void for_each(Function function) {
        for (auto& [name, lane] : lanes_)
            function(*lane);
    }

  private:
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const noexcept {
            return std::hash<std::string_view>()(text);
        }
    };
    template <class Value>
    using ByText = std::unordered_map<std::string, Value, Hash, std::equal_to<>>;

    void make_index();
    void index(EndpointLane& lane);
    Lanes found(std::string_view topic) const;

    ByText<std::unique_ptr<EndpointLane>> lanes_;
    std::size_t bytes_ = 0;  // of all their rows

    bool indexed_ = false;
    ByText<Lanes> by_topic_;                                       // patterns without `*`
    std::vector<std::pair<std::string, EndpointLane*>> patterns_;  // all others
    ByText<Lanes> cache_;                                          // of topics that were looked up
    std::size_t cached_ = 0;
};

}  // namespace outbox
