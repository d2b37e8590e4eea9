// Topics on trial. After a broker has refused a record of a topic, another producer sends the
// records of the topic for a while. It sends each record in a request of its own, and other topics
// are not affected when it stops.
#pragma once

#include <map>
#include <string>

#include "core/clock.hpp"
#include "sinks/kafka/sending.hpp"

namespace outbox {

class Trials {
  public:
    bool has(const std::string& topic) const { return topics_.contains(topic); }
    bool empty() const noexcept { return topics_.empty(); }

    // Call it for each report. Counts only reports of brokers.
    void note(const Delivery& delivery, const std::string& topic, Micros now);
    // Counts what the library finds by itself as well, such as a missing topic.
    void note_failed(const Delivery& delivery, const std::string& topic, Micros now);
    // Call it for each batch when all its records are reported.
    void finished(const Sending& sending, Micros now);

  private:
    std::map<std::string, Micros> topics_;  // with the time until when, at least
};

}  // namespace outbox
