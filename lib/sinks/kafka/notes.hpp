// Notes what librdkafka says about its connections and in its log, for all clients of this process.
// A process has one destination, and the figures go on when a producer is replaced.
//
// Interceptors count them. The library's own statistics are a document with an entry for each
// partition, so a large cluster would make it very large.
#pragma once

#include <librdkafka/rdkafka.h>

#include <cstddef>

#include "core/sink.hpp"

namespace outbox {

// Call it before the client is made.
void take_notes_of(rd_kafka_conf_t* conf);

// `queued` is the number of records that were not acknowledged. May throw std::bad_alloc.
void report_notes(std::size_t queued, SinkReport& report);

}  // namespace outbox
