// A sink of AWS with a scripted server on loopback: the base of the fixtures for its sinks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "sample_event.hpp"
#include "unit/drive.hpp"
#include "unit/scripted_peer.hpp"

namespace outbox {

inline Reply answer(int status, const std::string& body, const std::string& headers = "") {
    return {.bytes = "HTTP/1.1 " + std::to_string(status) + " x\r\n" + headers +
                     "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body};
}

inline std::string body_of(const std::string& request) {
    return request.substr(request.find("\r\n\r\n") + 4);
}

class DrivenAwsSink : public DrivenSink {
  protected:
    void create(const std::string& scheme_and_place, std::vector<Option> options = {},
                std::vector<Option> mapping = {{"access_key_id", "AKIA"},
                                               {"secret_access_key", "secret"}}) {
        const std::string peer = peer_.url().substr(0, peer_.url().rfind('/'));
        if (std::none_of(options.begin(), options.end(),
                         [](const Option& option) { return option.name == "url"; }))
            options.push_back({"url", scheme_and_place + "?endpoint=" + peer});
        make(options, mapping);
    }

    Event& event() {
        events_.push_back(sample_event());
        return events_.back();
    }
    Batch& batch(std::vector<Event*> events) {
        batches_.push_back({.events = std::move(events)});
        return batches_.back();
    }
    Batch& batch(std::size_t size) {
        std::vector<Event*> events;
        while (events.size() < size)
            events.push_back(&event());
        return batch(std::move(events));
    }

    std::string lane(const Event& event) const {
        std::string lane;
        sink_->lane_of(event, lane);
        return lane;
    }

    ScriptedPeer peer_;
    std::deque<Event> events_;
    std::deque<Batch> batches_;
};

}  // namespace outbox
