// The rules of a pipeline in the simplest form: a list of all events ever admitted.
//
// The model is told which events are admitted and what the sink answers. It checks every batch that
// is submitted, and says what the pipeline must report. It knows nothing of blocks, spare requests
// and waiting events: every answer is computed from the whole list.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/pipeline/pipeline.hpp"
#include "scripted_sink.hpp"
#include "unit/event_spec.hpp"

namespace outbox {

class DeliveryModel {
  public:
    DeliveryModel(const Capabilities& capabilities, const Pipeline::Limits& limits)
        : capabilities_(capabilities), limits_(limits) {}

    // The side of the log.
    void open_window() { windows_.push_back({}); }
    void close_window() { windows_.back().closed = true; }
    void admit(const std::vector<EventSpec>& specs, std::size_t block_bytes) {
        blocks_.push_back({.bytes = block_bytes, .unsettled = specs.size()});
        for (const EventSpec& spec : specs) {
            index_[spec.position] = events_.size();
            windows_.back().events.push_back(events_.size());
            events_.push_back({.spec = spec, .block = blocks_.size() - 1});
        }
    }

    // Checks a batch that the sink was given.
    void submitted(const Batch& batch) {
        batches_in_flight_++;
        EXPECT_LE(batches_in_flight_, capabilities_.max_batches);
        expect_within_limits(batch);
        for (const Event* event : batch.events) {
            Entry& entry = entry_of(event->position);
            EXPECT_EQ(event->ordering_key, entry.spec.key) << "of event " << event->position;
            EXPECT_TRUE(event->payload == entry.spec.payload) << "of event " << event->position;
            EXPECT_FALSE(entry.settled) << "event " << event->position << " was settled before";
            EXPECT_FALSE(entry.in_flight) << "event " << event->position << " is in flight already";
            expect_predecessors_out_of_the_way(event->position, batch);
            entry.in_flight = true;
            entry.batch = &batch;
            entry.deliveries++;
        }
    }

    // Answers of the sink.
    void confirmed(const Positions& batch) {
        answered(batch);
        for (std::int64_t position : batch)
            settle(position);
    }
    void failed(const Positions& batch) { answered(batch); }
    void recorded(std::int64_t position) {
        settle(position);
        recorded_++;
    }
    void divided(const Positions& batch, const std::vector<EventOutcome>& of_events) {
        answered(batch);
        for (std::size_t i = 0; i < batch.size(); i++)
            if (of_events[i].fate == Fate::confirmed)
                settle(batch[i]);
    }

    // Compares with what the pipeline reports now. As there, windows settled since the last call
    // are forgotten.
    void expect_agreement(Pipeline& pipeline, const DeliveryStats& stats) {
        std::size_t settled_windows = 0;
        while (front_ < windows_.size() && windows_[front_].closed &&
               all_settled(windows_[front_])) {
            for (std::size_t i : windows_[front_].events)
                highest_settled_ = std::max(highest_settled_, events_[i].spec.position);
            front_++;
            settled_windows++;
        }
        EXPECT_EQ(pipeline.take_settled_windows(), settled_windows);
        EXPECT_EQ(pipeline.highest_settled(), highest_settled_);
        EXPECT_EQ(pipeline.front_position(), front_position());
        EXPECT_EQ(pipeline.unsettled(), unsettled());
        EXPECT_EQ(pipeline.oldest(), oldest());
        EXPECT_EQ(pipeline.idle(), front_ == windows_.size());
        EXPECT_EQ(pipeline.has_room(), has_room()) << unsettled() << " not settled, a span of "
                                                   << span() << ", " << held_bytes() << " bytes";
        EXPECT_EQ(stats.delivered, events_.size() - unsettled() - recorded_);
    }
    void expect_everything_delivered() const {
        for (const Entry& entry : events_) {
            EXPECT_TRUE(entry.settled) << "event " << entry.spec.position;
            EXPECT_GE(entry.deliveries + static_cast<int>(recorded_), 1)
                << "event " << entry.spec.position;
        }
        EXPECT_EQ(batches_in_flight_, 0u);
    }

    std::size_t events() const { return events_.size(); }
    std::size_t unsettled() const {
        return static_cast<std::size_t>(std::count_if(
            events_.begin(), events_.end(), [](const Entry& entry) { return !entry.settled; }));
    }

  private:
    struct Entry {
        EventSpec spec;
        std::size_t block = 0;
        const Batch* batch = nullptr;
        bool in_flight = false;
        bool settled = false;
        int deliveries = 0;
    };
    struct Block {
        std::size_t bytes = 0;
        std::size_t unsettled = 0;
    };
    struct WindowEntry {
        std::vector<std::size_t> events;
        bool closed = false;
    };

    Entry& entry_of(std::int64_t position) { return events_.at(index_.at(position)); }

    void settle(std::int64_t position) {
        Entry& entry = entry_of(position);
        EXPECT_FALSE(entry.settled) << "event " << position;
        entry.settled = true;
        blocks_[entry.block].unsettled--;
    }

    void answered(const Positions& batch) {
        batches_in_flight_--;
        for (std::int64_t position : batch)
            entry_of(position).in_flight = false;
    }

    void expect_within_limits(const Batch& batch) const {
        std::size_t bytes = 0;
        for (const Event* event : batch.events)
            bytes += event->payload.size();
        EXPECT_GE(batch.events.size(), 1u);
        EXPECT_LE(batch.events.size(), capabilities_.max_batch_events);
        EXPECT_EQ(batch.bytes, bytes);
        EXPECT_TRUE(bytes <= capabilities_.max_batch_bytes || batch.events.size() == 1) << bytes;
        expect_to_belong_together(batch);
    }

    void expect_to_belong_together(const Batch& batch) const {
        for (std::size_t i = 0; i < batch.events.size(); i++)
            for (std::size_t j = 0; j < i; j++) {
                const Event &one = *batch.events[i], &other = *batch.events[j];
                const bool same_key = one.ordering_key == other.ordering_key;
                const bool may = (!capabilities_.lanes || one.topic == other.topic) &&
                                 (capabilities_.keys != KeyPolicy::alone || same_key) &&
                                 (capabilities_.keys != KeyPolicy::one_each || !same_key ||
                                  one.ordering_key.empty());
                EXPECT_TRUE(may) << "events " << one.position << " and " << other.position
                                 << " in one batch";
            }
    }

    // An earlier event of the key must be settled, or be in front of this one in the same batch. An
    // ordered sink keeps the order of batches in flight, so there it may also be in flight, and all
    // events count as one key.
    void expect_predecessors_out_of_the_way(std::int64_t position, const Batch& batch) const {
        const std::size_t self = index_.at(position);
        const std::string& key = events_[self].spec.key;
        if (!capabilities_.ordered && key.empty())
            return;
        for (std::size_t i = 0; i < self; i++) {
            const Entry& earlier = events_[i];
            if (earlier.settled || (!capabilities_.ordered && earlier.spec.key != key))
                continue;
            const bool goes_before =
                earlier.in_flight && (capabilities_.ordered || earlier.batch == &batch);
            EXPECT_TRUE(goes_before) << "event " << position << " overtakes event "
                                     << earlier.spec.position << " of its key";
        }
    }

    bool all_settled(const WindowEntry& window) const {
        return std::all_of(window.events.begin(), window.events.end(),
                           [&](std::size_t i) { return events_[i].settled; });
    }
    std::optional<std::int64_t> front_position() const {
        std::optional<std::int64_t> position;
        if (front_ < windows_.size())
            for (std::size_t i : windows_[front_].events) {
                if (!events_[i].settled)
                    break;
                position = events_[i].spec.position;
            }
        return position;
    }
    std::size_t first_unsettled() const {
        const auto first = std::find_if(events_.begin(), events_.end(),
                                        [](const Entry& entry) { return !entry.settled; });
        return static_cast<std::size_t>(first - events_.begin());
    }
    std::optional<Micros> oldest() const {
        const std::size_t first = first_unsettled();
        if (first == events_.size())
            return std::nullopt;
        return events_[first].spec.occurred_at;
    }
    std::size_t span() const { return events_.size() - first_unsettled(); }
    std::size_t held_bytes() const {
        std::size_t bytes = 0;
        for (const Block& block : blocks_)
            bytes += block.unsettled > 0 ? block.bytes : 0;
        return bytes;
    }
    bool has_room() const {
        return unsettled() < limits_.max_events && held_bytes() < limits_.max_bytes &&
               span() < limits_.max_events * Pipeline::max_span_factor;
    }

    const Capabilities capabilities_;
    const Pipeline::Limits limits_;
    std::vector<Entry> events_;  // in order of admission
    std::unordered_map<std::int64_t, std::size_t> index_;
    std::vector<Block> blocks_;
    std::vector<WindowEntry> windows_;
    std::size_t front_ = 0;  // the first window that is not settled
    std::int64_t highest_settled_ = 0;
    std::size_t batches_in_flight_ = 0;
    std::size_t recorded_ = 0;
};

}  // namespace outbox
