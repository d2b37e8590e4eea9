// The order of keys. For each key with events in the pipeline it knows which event may be sent and
// which ones wait behind it. It also has the keys that events in outbox.delivery hold, or those that
// will be written there.
//
// A chain has the events of one key, linked by Tracked::next_of_key. Only its head may be sent. If
// the head is a suspect, the whole chain counts as held back.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/pipeline/tracked.hpp"

namespace outbox {

class KeyChains {
  public:
    // Appends an event to the chain of its key. Returns true if it is the head.
    bool join(Tracked& event);
    // Returns the last event of a chain, or nullptr if the key has no event here.
    Tracked* last_of(std::string_view key) const noexcept;
    // Removes the head. Returns the new head, or nullptr if the chain is empty.
    Tracked* release(Tracked& head);
    // Removes the head and ends the chain. Returns the linked events that waited, or nullptr.
    Tracked* end(Tracked& head);
    // The events from the head to `last` travel together. Removes the events behind `last` and
    // returns them linked, or nullptr if there are none.
    Tracked* cut_behind(Tracked& head, Tracked& last);
    // The first events of a chain, `travelled`, were sent together. Removes those that are not in
    // `left`. The first one left becomes the head, and the events that waited behind `travelled`
    // follow.
    void keep(std::span<Event* const> travelled, std::span<Tracked* const> left);

    // Sets whether the head is a suspect.
    void set_suspect(Tracked& head, bool suspect);
    // Number of events in chains whose head is a suspect, heads included.
    std::size_t held_back() const noexcept { return held_back_; }

    // Keys that events in outbox.delivery hold.
    bool hold(std::string_view key) { return held_.try_emplace(std::string(key), 0).second; }
    void free(std::string_view key);
    void hold_only(std::vector<std::string>&& keys);
    // A held key stays held while events of it are in the line (see WindowLedger). Returns the key,
    // which stays where it is meanwhile.
    const std::string& join_line(std::string_view key);
    void leave_line(const std::string& key) noexcept { held_.find(key)->second--; }
    bool holds(std::string_view key) const { return !held_.empty() && held_.contains(key); }
    std::size_t held() const noexcept { return held_.size(); }

  private:
    struct Chain {
        Tracked* last = nullptr;
        std::size_t size = 0;
        bool suspect = false;
    };
    struct KeyHash : std::hash<std::string_view> {
        using is_transparent = void;
    };
    // Keys point into the texts of their heads.
    std::unordered_map<std::string_view, Chain> chains_;
    std::size_t held_back_ = 0;
    // With the number of their events in the line.
    std::unordered_map<std::string, std::size_t, KeyHash, std::equal_to<>> held_;
};

}  // namespace outbox
