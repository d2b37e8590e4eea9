#include "sinks/kafka/trials.hpp"

#include <algorithm>

#include "sinks/kafka/verdict.hpp"

namespace outbox {

// The shortest time that a topic is on trial.
static constexpr Micros trial_time = seconds(10);
static constexpr std::size_t max_on_trial = 1000;

void Trials::note(const Delivery& delivery, const std::string& topic, Micros now) {
    if (delivery.partition >= 0)
        note_failed(delivery, topic, now);
}

void Trials::note_failed(const Delivery& delivery, const std::string& topic, Micros now) {
    const Verdict verdict = verdict_on(delivery.error);
    const bool of_topic = verdict.fate == Fate::refused ||
                          (verdict.fate == Fate::unavailable && verdict.scope == Scope::lane);
    if (of_topic && (topics_.size() < max_on_trial || topics_.contains(topic)))
        topics_[topic] = now + trial_time;
}

void Trials::finished(const Sending& sending, Micros now) {
    const auto trial = topics_.find(sending.topic);
    if (trial == topics_.end() || now < trial->second)
        return;
    const bool confirmed = std::all_of(
        sending.deliveries.begin(), sending.deliveries.end(),
        [](const Delivery& delivery) { return delivery.error == RD_KAFKA_RESP_ERR_NO_ERROR; });
    if (confirmed)
        topics_.erase(trial);
}

}  // namespace outbox
