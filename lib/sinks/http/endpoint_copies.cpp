#include "sinks/http/endpoint_copies.hpp"

namespace outbox {

EventSource& EndpointCopies::added(EventSource source) {
    EventSource& kept = sources_.emplace_back(std::move(source));
    kept.self = std::prev(sources_.end());
    return kept;
}

EventSource& EndpointCopies::add(Batch& batch) {
    EventSource source;
    source.batch = &batch;
    held_events_ += batch.events.size();
    return added(std::move(source));
}

EventSource& EndpointCopies::add(std::vector<std::unique_ptr<EventBlock>> blocks) {
    EventSource source;
    source.blocks = std::move(blocks);
    for (const std::unique_ptr<EventBlock>& block : source.blocks)
        source.bytes += block->bytes();
    fetched_bytes_ += source.bytes;
    return added(std::move(source));
}

void EndpointCopies::completed(EventSource& source) {
    source.complete = true;
    remove_if_done(source);
}

EndpointCopy EndpointCopies::copy(Event& event, EventSource& source, Micros queued_at) noexcept {
    source.copies++;
    count_++;
    return {.event = &event, .source = &source, .queued_at = queued_at};
}

void EndpointCopies::release(const EndpointCopy& copy) {
    count_--;
    copy.source->copies--;
    remove_if_done(*copy.source);
}

void EndpointCopies::remove_if_done(EventSource& source) {
    if (!source.complete || source.copies > 0)
        return;
    if (source.batch != nullptr) {
        confirmed_.push_back(source.batch);
        held_events_ -= source.batch->events.size();
    }
    fetched_bytes_ -= source.bytes;
    sources_.erase(source.self);
}

void EndpointCopies::take_confirmed(std::vector<Outcome>& outcomes) {
    for (; !confirmed_.empty(); confirmed_.pop_back())
        outcomes.push_back({.batch = confirmed_.back()});
}

}  // namespace outbox
