// An ordered sink that has questions for the database, under the control of a test.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/endpoints.hpp"
#include "core/sink.hpp"

namespace outbox {

class EndpointsSink final : public Sink, public Endpoints {
  public:
    // The side of the pipeline.
    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = 2, .max_batches = 100, .ordered = true};
    }
    int descriptor() const noexcept override { return -1; }
    Micros deadline() const noexcept override { return never; }
    void submit(Batch& batch) override {
        batches.push_back(&batch);
        for (const Event* event : batch.events) {
            handed.insert(event->position);
            last = *event;
        }
    }
    void step(Micros, std::vector<Outcome>& outcomes) override {
        for (; confirms > 0 && !batches.empty(); confirms--) {
            outcomes.push_back({.batch = batches.front()});
            batches.pop_front();
        }
    }
    Endpoints* endpoints() noexcept override { return this; }

    // The side of the relay.
    Micros due() const noexcept override { return under_way ? never : due_at; }
    void look_again() noexcept override { looks++; }
    void pause(bool paused) noexcept override { is_paused = paused; }
    void forget_waits() override { forgotten++; }
    std::size_t in_flight() const noexcept override { return requests; }
    bool last_event(std::uint64_t& xid, std::int64_t& position) const noexcept override {
        if (!last)
            return false;
        xid = last->xid;
        position = last->position;
        return true;
    }
    std::string ask(const EndpointPlace& where) override {
        place = where;
        under_way = true;
        return "{}";
    }
    void answered(EndpointAnswer&& answer) override {
        under_way = false;
        due_at = never;
        known = answer.known;
    }
    void failed() noexcept override { under_way = false; }
    const std::string& left_out() const noexcept override { return leaves_out; }

    // The side of the test.
    bool covers(std::uint64_t xid, std::int64_t position) const {
        return place.done.finished(xid) ||
               (place.upto && place.upto->finished(xid) && position <= place.position);
    }

    std::deque<Batch*> batches;
    std::set<std::int64_t> handed;  // positions of all events
    std::optional<Event> last;
    std::size_t confirms = 0;  // batches that are confirmed next
    Micros due_at = never;
    bool under_way = false;
    EndpointPlace place;
    std::string known;
    int looks = 0;
    bool is_paused = false;
    int forgotten = 0;
    std::size_t requests = 0;
    std::string leaves_out;
};

}  // namespace outbox
