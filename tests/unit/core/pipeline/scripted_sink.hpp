// A sink under the control of a test: it keeps every batch until the test gives its outcome.
//
// Any event of a batch names the batch by its position. Submitted batches can be compared with
// lists of positions: {{1, 2}, {5}} are two batches, in order of submission.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/sink.hpp"

namespace outbox {

using Positions = std::vector<std::int64_t>;

inline Positions positions_of(const Batch& batch) {
    Positions positions;
    for (const Event* event : batch.events)
        positions.push_back(event->position);
    return positions;
}

class ScriptedSink final : public Sink {
  public:
    explicit ScriptedSink(const Capabilities& capabilities) : capabilities_(capabilities) {}

    // The side of the pipeline.
    Capabilities capabilities() const noexcept override { return capabilities_; }
    int descriptor() const noexcept override { return -1; }
    Micros deadline() const noexcept override { return answers_.empty() ? own_deadline_ : 0; }
    void lane_of(const Event& event, std::string& lane) const override { lane += event.topic; }
    void submit(Batch& batch) override {
        in_flight_.push_back(&batch);
        if (capabilities_.ordered && has_failed()) {
            answer(batch, {.batch = &batch, .fate = Fate::undone});
            return;
        }
        if (on_submit)
            on_submit(batch);
        submitted_.push_back(positions_of(batch));
        if (confirms_at_once_)
            answer(batch, {.batch = &batch});
    }
    void step(Micros, std::vector<Outcome>& outcomes) override {
        outcomes.insert(outcomes.end(), std::make_move_iterator(answers_.begin()),
                        std::make_move_iterator(answers_.end()));
        answers_.clear();
    }
    bool report(SinkReport& report) override {
        report.sent_again = std::exchange(sent_again, 0);
        report.why_again = "it was reset";
        return false;
    }

    // The side of the test. Answers arrive with the pipeline's next step.
    void confirm(std::int64_t position) {
        Batch* batch = batch_with(position);
        if (batch == nullptr)
            return;
        if (capabilities_.ordered && batch != in_flight_.front())
            ADD_FAILURE() << "an ordered sink confirms in order; the batch of event " << position
                          << " is not the first";
        answer(*batch, {.batch = batch});
    }
    // If the sink is ordered, the batches behind the failed one are undone.
    void fail(std::int64_t position, std::string error = "down", Micros retry_after = 0,
              Fate fate = Fate::unavailable, bool permanent = false) {
        Batch* failed = batch_with(position);
        const std::vector<Batch*> batches =
            failed != nullptr && capabilities_.ordered ? in_flight_ : std::vector{failed};
        for (Batch* batch : batches)
            if (batch != nullptr)
                answer(*batch, {.batch = batch,
                                .fate = batch == failed ? fate : Fate::undone,
                                .error = error,
                                .retry_after = retry_after,
                                .permanent = permanent});
    }
    void fail_in(std::int64_t position, Fate fate, Scope scope) {
        if (Batch* batch = batch_with(position))
            answer(*batch, {.batch = batch, .fate = fate, .error = "why", .scope = scope});
    }
    void be_gone(std::int64_t position) {
        if (Batch* batch = batch_with(position))
            answer(*batch, {.batch = batch,
                            .fate = Fate::unavailable,
                            .error = "gone",
                            .scope = Scope::lane,
                            .gone = true});
    }
    // Gives each event of the batch an outcome of its own, in order.
    void divide(std::int64_t position, std::vector<EventOutcome> of_events) {
        if (Batch* batch = batch_with(position))
            answer(*batch, {.batch = batch, .of_events = std::move(of_events)});
    }
    void confirm_everything() {
        while (!in_flight_.empty())
            confirm(in_flight_.front()->events.front()->position);
    }
    // From now on every batch is confirmed in the step that submits it.
    void confirm_at_once() { confirms_at_once_ = true; }
    void set_deadline(Micros deadline) { own_deadline_ = deadline; }

    const std::vector<Batch*>& batches() const { return in_flight_; }
    std::vector<Positions> in_flight() const {
        std::vector<Positions> positions;
        for (const Batch* batch : in_flight_)
            positions.push_back(positions_of(*batch));
        return positions;
    }
    // All batches ever submitted.
    const std::vector<Positions>& submitted() const { return submitted_; }

    std::function<void(const Batch&)> on_submit;
    std::uint64_t sent_again = 0;  // since the last report

  private:
    // True if a failure has not reached the pipeline yet.
    bool has_failed() const {
        return std::any_of(answers_.begin(), answers_.end(),
                           [](const Outcome& answer) { return answer.fate != Fate::confirmed; });
    }
    Batch* batch_with(std::int64_t position) const {
        for (Batch* batch : in_flight_)
            for (const Event* event : batch->events)
                if (event->position == position)
                    return batch;
        ADD_FAILURE() << "event " << position << " is not in flight, but "
                      << testing::PrintToString(in_flight());
        return nullptr;
    }

    void answer(Batch& batch, Outcome outcome) {
        in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &batch));
        answers_.push_back(std::move(outcome));
    }

    const Capabilities capabilities_;
    std::vector<Batch*> in_flight_;  // in order of submission
    std::vector<Outcome> answers_;
    std::vector<Positions> submitted_;
    Micros own_deadline_ = never;
    bool confirms_at_once_ = false;
};

}  // namespace outbox
