// Topics on trial: a broker refused something of them, so for a while they have a producer of their
// own, which sends each record in a request of its own, and stops without harm to other topics.
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

    // To be called for each report. Counts only what a broker said.
    void note(const Delivery& delivery, const std::string& topic, Micros now);
    // Counts what the library found by itself as well, such as a missing topic.
    void note_failed(const Delivery& delivery, const std::string& topic, Micros now);
    // To be called for each batch all of whose records were reported.
    void finished(const Sending& sending, Micros now);

  private:
    std::map<std::string, Micros> topics_;  // and until when at least
};

}  // namespace outbox
