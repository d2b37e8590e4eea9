// What librdkafka tells of its connections and in its log, of all clients of this process, which has
// one destination: a producer may be replaced, and the figures go on.
//
// They are counted where requests pass. The library's own statistics are a document with an entry
// for each partition, which is large, and as large as a cluster wants it to be.
#pragma once

#include <librdkafka/rdkafka.h>

#include <cstddef>

#include "core/sink.hpp"

namespace outbox {

// Before the client is made.
void take_notes_of(rd_kafka_conf_t* conf);

// `queued`: records that were not acknowledged. May throw std::bad_alloc.
void report_notes(std::size_t queued, SinkReport& report);

}  // namespace outbox
