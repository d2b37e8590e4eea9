// An event that owns its texts.
#pragma once

#include <string_view>
#include <vector>

#include "core/event.hpp"

namespace outbox {

struct SampleEvent {
    Event event;
    std::vector<Header> headers;

    SampleEvent() {
        event.position = 42;
        event.occurred_at = 1'700'000'000'123'456;
        for (std::uint8_t i = 0; i < 16; i++)
            event.event_id[i] = static_cast<std::uint8_t>(i * 0x11);
        event.topic = "video.events";
        event.aggregate_type = "video";
        event.aggregate_id = "v1";
        event.event_type = "VideoUpdated";
        event.ordering_key = "v1";
        event.content_type = "application/json";
        event.payload = R"({"title": "Cats"})";
        event.has_payload = true;
    }

    void add(std::string_view name, std::string_view value,
             Header::Kind kind = Header::Kind::string) {
        headers.push_back({name, value, kind});
        event.headers = headers;
    }
};

}  // namespace outbox
