#include "inbox/sources/scripted.hpp"

#include <algorithm>
#include <utility>

#include "inbox/error.hpp"

namespace inbox {

// ------------------------------------------------------------------------------------------------
// For the test
// ------------------------------------------------------------------------------------------------

void Script::deliver(Event event) {
    Delivery delivery;
    delivery.size = event.payload ? event.payload->size() : 0;
    delivery.event = std::move(event);
    delivery.published_at =
        std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now());
    deliver(std::move(delivery));
}

void Script::deliver(Delivery delivery) {
    const std::lock_guard lock(mutex_);
    delivered_++;
    if (delivery.message_id.empty())
        delivery.message_id = std::to_string(delivered_);
    if (delivery.source.empty())
        delivery.source = "scripted";
    queue_.push_back(std::move(delivery));
    changed_.notify_all();
}

void Script::fail_open(int times, const std::string& message, bool transient) {
    const std::lock_guard lock(mutex_);
    open_fault_ = {times, message, transient};
}

void Script::fail_receive(int times, const std::string& message, bool transient) {
    const std::lock_guard lock(mutex_);
    receive_fault_ = {times, message, transient};
    changed_.notify_all();
}

bool Script::wait_until_settled(std::chrono::milliseconds limit) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return queue_.empty() && handed_out_.empty(); });
}

std::vector<std::string> Script::acked() const {
    const std::lock_guard lock(mutex_);
    return acked_;
}

std::vector<std::string> Script::nacked() const {
    const std::lock_guard lock(mutex_);
    return nacked_;
}

std::vector<Time> Script::seeks() const {
    const std::lock_guard lock(mutex_);
    return seeks_;
}

int Script::opened() const {
    const std::lock_guard lock(mutex_);
    return opened_;
}

bool Script::closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
}

// ------------------------------------------------------------------------------------------------
// For the source
// ------------------------------------------------------------------------------------------------

void Script::Fault::strike() {
    if (times == 0)
        return;
    times--;
    throw SourceError(message, transient);
}

void Script::take_back() {
    for (auto last = handed_out_.rbegin(); last != handed_out_.rend(); ++last)
        queue_.push_front(std::move(last->second));
    handed_out_.clear();
}

void Script::open() {
    const std::lock_guard lock(mutex_);
    open_fault_.strike();
    opened_++;
    closed_ = false;
    take_back();
}

std::vector<Delivery> Script::receive(std::size_t max_messages, std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait,
                      [this] { return closed_ || !queue_.empty() || receive_fault_.times > 0; });
    receive_fault_.strike();
    std::vector<Delivery> received;
    while (!closed_ && !queue_.empty() && received.size() < max_messages) {
        Delivery& next = queue_.front();
        next.handle = std::to_string(++last_handle_);
        handed_out_.emplace(last_handle_, next);
        received.push_back(std::move(next));
        queue_.pop_front();
    }
    return received;
}

void Script::ack(std::span<const Delivery> deliveries) {
    const std::lock_guard lock(mutex_);
    for (const Delivery& delivery : deliveries)
        if (handed_out_.erase(std::stoull(delivery.handle)) > 0)
            acked_.push_back(delivery.message_id);
    changed_.notify_all();
}

void Script::nack(std::span<const Delivery> deliveries) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = deliveries.size(); i-- > 0;)
        if (auto held = handed_out_.extract(std::stoull(deliveries[i].handle)))
            queue_.push_front(std::move(held.mapped()));
    for (const Delivery& delivery : deliveries)
        nacked_.push_back(delivery.message_id);
    changed_.notify_all();
}

void Script::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    take_back();
    changed_.notify_all();
}

// ------------------------------------------------------------------------------------------------
// The source
// ------------------------------------------------------------------------------------------------

ScriptedSource::ScriptedSource(std::shared_ptr<Script> script, std::string subscription)
    : script_(std::move(script)), subscription_(std::move(subscription)) {}

void ScriptedSource::open() {
    script_->open();
}

std::vector<Delivery> ScriptedSource::receive(std::size_t max_messages,
                                              std::chrono::milliseconds wait) {
    return script_->receive(max_messages, wait);
}

void ScriptedSource::ack(std::span<const Delivery> deliveries) {
    script_->ack(deliveries);
}

void ScriptedSource::nack(std::span<const Delivery> deliveries) {
    script_->nack(deliveries);
}

void ScriptedSource::seek(Time to) {
    const std::lock_guard lock(script_->mutex_);
    script_->seeks_.push_back(to);
}

void ScriptedSource::close(std::chrono::milliseconds) noexcept {
    script_->close();
}

}  // namespace inbox
