// An event in which every field is set.
#pragma once

#include <vector>

#include "core/event.hpp"

namespace outbox {

inline Event sample_event() {
    Event event;
    event.position = 7;
    event.occurred_at = seconds(1'800'000'000) + 123'456;
    event.event_id = {0x01, 0x9a, 0xfe, 0, 0, 0, 0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, 0x2a};
    event.version = 3;
    event.has_version = true;
    event.schema_version = 2;
    event.topic = "video.events";
    event.aggregate_type = "video";
    event.aggregate_id = "v-1";
    event.event_type = "video.created";
    event.ordering_key = "v-1";
    event.content_type = "application/json";
    event.payload = R"({"n":1})";
    event.has_payload = true;
    return event;
}
constexpr const char* sample_id = "019afe00-0000-7000-8000-00000000002a";

}  // namespace outbox
