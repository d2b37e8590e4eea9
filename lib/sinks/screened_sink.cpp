#include "sinks/screened_sink.hpp"

#include <algorithm>
#include <unordered_set>

#include "core/text.hpp"

namespace outbox {

namespace {

// A batch with faulty events, and the part of it that is passed on.
struct Divided {
    Batch* whole = nullptr;
    Batch part{};
    std::vector<bool> in_part{};
};

bool is_faulty(const Event* event) noexcept {
    return !event->fault.empty();
}

Outcome undone(Batch& batch) {
    return {.batch = &batch, .fate = Fate::undone};
}

// Returns whether the outcome of the part says nothing about single events.
bool concerns_all(const Outcome& outcome) noexcept {
    const bool is_verdict = outcome.fate == Fate::confirmed ||
                            (outcome.fate == Fate::refused && outcome.batch->events.size() == 1);
    return outcome.of_events.empty() && !is_verdict;
}

// The outcome of the whole batch. That of the part is nullptr if the part is empty.
Outcome outcome_of(const Divided& divided, const Outcome* of_part) {
    Outcome outcome = of_part != nullptr ? *of_part : undone(*divided.whole);
    outcome.batch = divided.whole;
    if (of_part != nullptr && concerns_all(*of_part))
        return outcome;
    const std::vector<Event*>& events = divided.whole->events;
    outcome.of_events.assign(events.size(), {.fate = Fate::undone});
    outcome.message_ids.assign(events.size(), "");
    for (std::size_t i = 0, next = 0; i < events.size(); i++) {
        EventOutcome& own = outcome.of_events[i];
        if (is_faulty(events[i])) {
            own = {.fate = Fate::refused, .error = printable(events[i]->fault), .permanent = true};
        } else if (divided.in_part[i]) {
            own = of_part->of_events.empty() ? EventOutcome{of_part->fate, of_part->error,
                                                            of_part->permanent, of_part->scope}
                                             : of_part->of_events[next];
            if (next < of_part->message_ids.size())
                outcome.message_ids[i] = of_part->message_ids[next];
            next++;
        }
    }
    return outcome;
}

class ScreenedSink final : public Sink {
  public:
    explicit ScreenedSink(std::unique_ptr<Sink> sink)
        : sink_(std::move(sink)), ordered_(sink_->capabilities().ordered) {}

    Capabilities capabilities() const noexcept override { return sink_->capabilities(); }
    int descriptor() const noexcept override { return sink_->descriptor(); }
    Micros deadline() const noexcept override { return may_end() ? 0 : sink_->deadline(); }
    std::size_t size_of(const Event& event) const noexcept override {
        return sink_->size_of(event);
    }
    void lane_of(const Event& event, std::string& lane) const override {
        sink_->lane_of(event, lane);
    }
    Transactions* transactions() noexcept override { return sink_->transactions(); }
    Endpoints* endpoints() noexcept override { return sink_->endpoints(); }
    bool report(SinkReport& report) override { return sink_->report(report); }

    void submit(Batch& batch) override {
        if (ordered_ && !divided_.empty())
            behind_.push_back(&batch);
        else if (std::any_of(batch.events.begin(), batch.events.end(), is_faulty))
            divide(batch);
        else
            pass_on(batch);
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        const std::size_t known = outcomes.size();
        sink_->step(now, outcomes);
        const std::size_t ended = outcomes.size() - known;
        passed_on_ -= ended;
        bool failed = false;
        for (std::size_t i = known; i < known + ended; i++) {
            failed |= outcomes[i].fate != Fate::confirmed;
            replace_part(outcomes[i]);
        }
        if (ordered_ && failed)  // before the part was passed on
            undo(outcomes);
        else if (may_end())
            end(outcomes);
        if (divided_.empty())
            undo_behind(outcomes);
    }

  private:
    void pass_on(Batch& batch) {
        passed_on_++;
        sink_->submit(batch);
    }

    void divide(Batch& batch) {
        auto divided = std::make_unique<Divided>();
        divided->whole = &batch;
        divided->in_part.resize(batch.events.size());
        std::unordered_set<std::string_view> faulty_keys;
        for (std::size_t i = 0; i < batch.events.size(); i++) {
            Event* event = batch.events[i];
            if (is_faulty(event)) {
                if (!event->ordering_key.empty())
                    faulty_keys.insert(event->ordering_key);
            } else if (!faulty_keys.contains(event->ordering_key)) {
                divided->in_part[i] = true;
                divided->part.events.push_back(event);
                divided->part.bytes += sink_->size_of(*event);
            }
        }
        Batch& part = divided->part;
        divided_.push_back(std::move(divided));
        if (!part.events.empty())
            pass_on(part);
    }

    // An outcome of a part becomes that of its batch.
    void replace_part(Outcome& outcome) {
        const auto of_part =
            std::find_if(divided_.begin(), divided_.end(),
                         [&](const auto& divided) { return &divided->part == outcome.batch; });
        if (of_part == divided_.end())
            return;
        outcome = outcome_of(**of_part, &outcome);
        divided_.erase(of_part);
    }

    // Returns true if a batch can end at once: no part of it was passed on, and no batch is before
    // it.
    bool may_end() const noexcept {
        return (!ordered_ || passed_on_ == 0) &&
               std::any_of(divided_.begin(), divided_.end(),
                           [](const auto& divided) { return divided->part.events.empty(); });
    }

    void end(std::vector<Outcome>& outcomes) {
        std::erase_if(divided_, [&](const auto& divided) {
            const bool ends = divided->part.events.empty();
            if (ends)
                outcomes.push_back(outcome_of(*divided, nullptr));
            return ends;
        });
    }

    void undo(std::vector<Outcome>& outcomes) {
        for (const auto& divided : divided_)
            outcomes.push_back(undone(*divided->whole));
        divided_.clear();
    }

    void undo_behind(std::vector<Outcome>& outcomes) {
        for (Batch* batch : behind_)
            outcomes.push_back(undone(*batch));
        behind_.clear();
    }

    std::unique_ptr<Sink> sink_;
    const bool ordered_;
    std::vector<std::unique_ptr<Divided>> divided_;  // at most one if ordered
    std::vector<Batch*> behind_;                     // if ordered: behind the divided one
    std::size_t passed_on_ = 0;                      // batches and parts without an outcome
};

}  // namespace

std::unique_ptr<Sink> screened(std::unique_ptr<Sink> sink) {
    return std::make_unique<ScreenedSink>(std::move(sink));
}

}  // namespace outbox
