// The order of keys: of each key that has events in the pipeline, which one has its turn and which
// wait behind it; and the keys that events in outbox.delivery hold.
//
// A chain is the events of one key, linked by Tracked::next_of_key. Its head has the turn. A chain
// whose head is a suspect counts as held back, with all that waits in it.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/pipeline/tracked.hpp"

namespace outbox {

class KeyChains {
  public:
    // Puts an event behind the others of its key. True: there are none, it has the turn.
    bool join(Tracked& event);
    // The last one of a chain; nullptr: there is no event of the key.
    Tracked* last_of(std::string_view key) const noexcept;
    // The head leaves. The next one, which has the turn now; nullptr: it was the last one.
    Tracked* release(Tracked& head);
    // The head leaves and the chain ends. What waited is linked; nullptr: nothing did.
    Tracked* end(Tracked& head);
    // What waits behind `last`, up to which the chain travels together from its head on, leaves the
    // chain, linked; nullptr: nothing does.
    Tracked* cut_behind(Tracked& head, Tracked& last);
    // Of a chain whose first events travelled together, `travelled`, only `left` stay, the first one
    // with the turn; whatever waited behind them follows.
    void keep(std::span<Event* const> travelled, std::span<Tracked* const> left);

    // The head is a suspect, or is not any more.
    void set_suspect(Tracked& head, bool suspect);
    // Events in chains of suspects, with their heads.
    std::size_t held_back() const noexcept { return held_back_; }

    // Keys that events in outbox.delivery hold.
    bool hold(std::string_view key) { return held_.emplace(key).second; }
    void free(std::string_view key);
    void hold_only(std::vector<std::string>&& keys);
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
    std::unordered_map<std::string_view, Chain> chains_;  // keys are texts of their heads
    std::size_t held_back_ = 0;
    std::unordered_set<std::string, KeyHash, std::equal_to<>> held_;
};

}  // namespace outbox
