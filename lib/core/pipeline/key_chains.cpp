#include "core/pipeline/key_chains.hpp"

#include <utility>

namespace outbox {

bool KeyChains::join(Tracked& event) {
    auto [entry, is_first] = chains_.try_emplace(event.event->ordering_key);
    Chain& chain = entry->second;
    if (!is_first)
        chain.last->next_of_key = &event;
    chain.last = &event;
    chain.size++;
    if (chain.suspect)
        held_back_++;
    return is_first;
}

Tracked* KeyChains::last_of(std::string_view key) const noexcept {
    const auto entry = chains_.find(key);
    return entry == chains_.end() ? nullptr : entry->second.last;
}

Tracked* KeyChains::release(Tracked& head) {
    Tracked* next = std::exchange(head.next_of_key, nullptr);
    if (next == nullptr) {
        end(head);
        return nullptr;
    }
    // The entry's key points into the head, whose block may be freed. Let it point into the next
    // event.
    auto entry = chains_.extract(head.event->ordering_key);
    Chain& chain = entry.mapped();
    chain.size--;
    if (std::exchange(chain.suspect, false))
        held_back_ -= chain.size + 1;
    entry.key() = next->event->ordering_key;
    chains_.insert(std::move(entry));
    return next;
}

Tracked* KeyChains::end(Tracked& head) {
    const auto entry = chains_.find(head.event->ordering_key);
    if (entry != chains_.end()) {
        if (entry->second.suspect)
            held_back_ -= entry->second.size;
        chains_.erase(entry);
    }
    return std::exchange(head.next_of_key, nullptr);
}

Tracked* KeyChains::cut_behind(Tracked& head, Tracked& last) {
    Tracked* const waited = std::exchange(last.next_of_key, nullptr);
    std::size_t count = 0;
    for (const Tracked* event = waited; event != nullptr; event = event->next_of_key)
        count++;
    Chain& chain = chains_.at(head.event->ordering_key);
    chain.last = &last;
    chain.size -= count;
    if (chain.suspect)
        held_back_ -= count;
    return waited;
}

void KeyChains::keep(std::span<Event* const> travelled, std::span<Tracked* const> left) {
    Tracked* const after = travelled.back()->tracked->next_of_key;
    auto entry = chains_.extract(travelled.front()->ordering_key);
    Chain& chain = entry.mapped();
    if (std::exchange(chain.suspect, false))
        held_back_ -= chain.size;
    chain.size -= travelled.size() - left.size();
    if (after == nullptr)
        chain.last = left.back();
    entry.key() = left.front()->event->ordering_key;
    chains_.insert(std::move(entry));
    for (Event* event : travelled)
        event->tracked->next_of_key = nullptr;
    for (std::size_t i = 0; i < left.size(); i++)
        left[i]->next_of_key = i + 1 < left.size() ? left[i + 1] : after;
}

void KeyChains::set_suspect(Tracked& head, bool suspect) {
    const auto entry = chains_.find(head.event->ordering_key);
    if (entry == chains_.end() || entry->second.suspect == suspect)
        return;
    entry->second.suspect = suspect;
    held_back_ = suspect ? held_back_ + entry->second.size : held_back_ - entry->second.size;
}

void KeyChains::free(std::string_view key) {
    const auto entry = held_.find(key);
    if (entry != held_.end() && entry->second == 0)
        held_.erase(entry);
}

void KeyChains::hold_only(std::vector<std::string>&& keys) {
    std::erase_if(held_, [](const auto& entry) { return entry.second == 0; });
    for (std::string& key : keys)
        held_.try_emplace(std::move(key), 0);
}

const std::string& KeyChains::join_line(std::string_view key) {
    auto& [name, count] = *held_.find(key);
    count++;
    return name;
}

}  // namespace outbox
