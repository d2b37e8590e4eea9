#include "core/pipeline/window_ledger.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace outbox {

void WindowLedger::open() {
    assert(!is_open());
    windows_.emplace_back();
}

void WindowLedger::add(TrackedBlock& block) {
    assert(is_open() && !block.empty());
    Window& window = windows_.back();
    block.window = &window;
    block.through = block.events().back().position;
    block.previous = window.last;
    if (window.begin == 0)
        window.begin = block.events().front().position;
    (window.last != nullptr ? window.last->next : window.first) = &block;
    window.last = &block;
    span_ += block.events().size();
    added_ += block.events().size();
}

void WindowLedger::close(std::int64_t last_position) {
    windows_.back().closed = true;
    windows_.back().last_position = last_position;
    advance();
}

void WindowLedger::settle(Tracked& event) noexcept {
    event.settled = true;
    if (--event.block->unsettled == 0)
        leave(*event.block);
}

void WindowLedger::leave(TrackedBlock& block) noexcept {
    Window& window = *std::exchange(block.window, nullptr);
    if (block.previous != nullptr) {
        block.previous->through = block.through;
        block.previous->span += block.span;
        block.previous->next = block.next;
    } else {
        window.settled_to = block.through;
        window.any_settled = true;
        window.passed += block.span;
        window.first = block.next;
    }
    (block.next != nullptr ? block.next->previous : window.last) = block.previous;
}

void WindowLedger::advance() {
    while (!windows_.empty()) {
        Window& window = windows_.front();
        span_ -= std::exchange(window.passed, 0);
        if (TrackedBlock* block = window.first) {
            const std::vector<Tracked>& events = block->tracked();
            while (events[block->first_unsettled].settled) {
                window.settled_to = events[block->first_unsettled].event->position;
                window.any_settled = true;
                block->first_unsettled++;
                block->span--;
                span_--;
            }
            return;
        }
        if (!window.closed || has_line(window))
            return;
        highest_settled_ = std::max({highest_settled_, window.settled_to, window.last_position});
        windows_.pop_front();
        settled_windows_++;
    }
}

std::size_t WindowLedger::take_settled() noexcept {
    return std::exchange(settled_windows_, 0);
}

std::optional<std::int64_t> WindowLedger::front_position() const noexcept {
    if (windows_.empty() || !windows_.front().any_settled)
        return std::nullopt;
    const Window& window = windows_.front();
    if (!has_line(window))
        return window.settled_to;
    const std::int64_t before_line = line_.front().position - 1;
    if (before_line < window.begin)
        return std::nullopt;
    return std::min(window.settled_to, before_line);
}

void WindowLedger::park(Tracked& event, const std::string& key) {
    line_.push_back({.position = event.event->position,
                     .xid = event.event->xid,
                     .occurred_at = event.event->occurred_at,
                     .key = &key,
                     .window = event.block->window,
                     .before = added_ - event.block->events().size()});
    settle(event);
}

void WindowLedger::leave_line(std::size_t count) {
    line_.erase(line_.begin(), line_.begin() + static_cast<std::ptrdiff_t>(count));
}

bool WindowLedger::has_line(const Window& window) const noexcept {
    return !line_.empty() && line_.front().window == &window;
}

std::size_t WindowLedger::whole_span() const noexcept {
    return line_.empty() ? span_ : std::max<std::size_t>(span_, added_ - line_.front().before);
}

TrackedBlock* WindowLedger::first_block() const noexcept {
    for (const Window& window : windows_)
        if (window.first != nullptr)
            return window.first;
    return nullptr;
}

Tracked* WindowLedger::first_unsettled() const noexcept {
    TrackedBlock* block = first_block();
    if (block == nullptr)
        return nullptr;
    // advance() updates the front window only, so skip settled events here.
    std::size_t i = block->first_unsettled;
    while (block->tracked()[i].settled)
        i++;
    return &block->tracked()[i];
}

}  // namespace outbox
