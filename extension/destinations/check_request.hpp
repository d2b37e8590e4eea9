// Shared memory segment of a session that checks a destination and of its worker: the request, a
// queue for findings, and the topic.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

constexpr Size queue_size = 16 * 1024;

// Lies in the shared memory in front of the queue.
struct CheckRequest {
    Oid database;
    Oid server;  // invalid for the default destination
    bool has_topic;
};

constexpr Size queue_offset = MAXALIGN(sizeof(CheckRequest));
constexpr Size topic_offset = queue_offset + queue_size;

inline CheckRequest* request_in(dsm_segment* segment) {
    return static_cast<CheckRequest*>(dsm_segment_address(segment));
}
inline char* queue_in(dsm_segment* segment) {
    return static_cast<char*>(dsm_segment_address(segment)) + queue_offset;
}
inline char* topic_in(dsm_segment* segment) {
    return static_cast<char*>(dsm_segment_address(segment)) + topic_offset;
}

}  // namespace outbox
