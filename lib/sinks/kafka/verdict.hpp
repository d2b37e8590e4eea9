// Judges errors of Kafka: what they mean for the event, its topic, or the destination.
#pragma once

#include <librdkafka/rdkafka.h>

#include <string>
#include <string_view>

#include "core/sink.hpp"

namespace outbox {

struct Verdict {
    Fate fate;
    Scope scope = Scope::destination;
    bool permanent = false;
};

Verdict verdict_on(rd_kafka_resp_err_t error) noexcept;

// The library gave the message up for a reason outside it.
bool is_given_up(rd_kafka_resp_err_t error) noexcept;

// The producer has stopped or is about to, and says why in an error of its own.
bool is_dropped(rd_kafka_resp_err_t error) noexcept;

// The record or its topic is wrong, not the producer or its transaction.
bool is_of_record(rd_kafka_resp_err_t error) noexcept;

// Returns one line.
std::string explain(rd_kafka_resp_err_t error, std::string_view topic);

}  // namespace outbox
