// The pipeline under random load: windows, keys, batch sizes, failures, answers out of order. A
// simple model (delivery_model.hpp) checks it after every action.
//
// Each seed is one run of a few hundred events, and always the same run. A failure names its seed.
// OUTBOX_TEST_SEED=<first>[:<count>] runs that seed, or any number of others.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "core/pipeline/pipeline.hpp"
#include "core/text.hpp"
#include "delivery_model.hpp"
#include "scripted_sink.hpp"
#include "unit/fake_clock.hpp"
#include "unit/many.hpp"

namespace outbox {
namespace {

class Dice {
  public:
    explicit Dice(std::uint64_t seed) : random_(seed) {}

    std::size_t below(std::size_t n) { return random_() % n; }
    std::size_t between(std::size_t low, std::size_t high) { return low + below(high - low + 1); }
    bool percent(std::size_t chance) { return below(100) < chance; }
    template <class T>
    const T& one_of(const std::vector<T>& choices) {
        return choices[below(choices.size())];
    }

  private:
    std::mt19937_64 random_;
};

// Positions as the log assigns them. They rise within a window. A later window may have lower ones,
// from transactions that took longer.
class Sequence {
  public:
    Positions of_window(Dice& dice, std::size_t count) {
        Positions positions;
        while (positions.size() < count) {
            if (!late_.empty() && dice.percent(30)) {
                positions.push_back(late_.back());
                late_.pop_back();
            } else if (dice.percent(20)) {
                late_.push_back(++last_);
            } else {
                positions.push_back(++last_);
            }
        }
        std::sort(positions.begin(), positions.end());
        return positions;
    }

  private:
    std::int64_t last_ = 0;
    Positions late_;  // taken by transactions that have not committed yet
};

Capabilities random_capabilities(Dice& dice) {
    Capabilities capabilities{.max_batch_events = dice.one_of<std::size_t>({1, 1, 2, 5, 20}),
                              .max_batch_bytes = dice.one_of<std::size_t>({1, 50, 500, 1'000'000}),
                              .max_batches = dice.between(1, 8),
                              .ordered = dice.percent(35)};
    if (!capabilities.ordered) {
        capabilities.keys = dice.one_of<KeyPolicy>(
            {KeyPolicy::mixed, KeyPolicy::mixed, KeyPolicy::one_each, KeyPolicy::alone});
        capabilities.lanes = dice.percent(50);
    }
    return capabilities;
}

Pipeline::Limits random_limits(Dice& dice) {
    return {.max_events = dice.one_of<std::size_t>({1, 2, 4, 20, 200}),
            .max_bytes = dice.between(1, 8) * usual_block_bytes(),
            .backoff_base = milliseconds(1),
            .backoff_cap = milliseconds(50),
            .moves_waiting = false};
}

class RandomRun {
  public:
    explicit RandomRun(std::uint64_t seed)
        : dice_(seed),
          capabilities_(random_capabilities(dice_)),
          limits_(random_limits(dice_)),
          keys_(dice_.between(1, 12)),
          topics_(dice_.one_of<std::size_t>({1, 3, 100})),
          unordered_percent_(dice_.one_of<std::size_t>({0, 20, 90})),
          newest_first_percent_(dice_.one_of<std::size_t>({0, 99})),
          failure_percent_(dice_.one_of<std::size_t>({0, 10, 50})),
          model_(capabilities_, limits_) {
        auto sink = std::make_unique<ScriptedSink>(capabilities_);
        sink_ = sink.get();
        sink_->on_submit = [this](const Batch& batch) { watch_submission(batch); };
        pipeline_ = std::make_unique<Pipeline>(std::move(sink), limits_, clock_, stats_, seed);
    }

    void go() {
        const std::size_t wanted = dice_.between(50, 400);
        for (int turn = 0; model_.events() < wanted && !testing::Test::HasFailure(); turn++) {
            ASSERT_LT(turn, 100'000)
                << "nothing is read any more; " << model_.unsettled() << " events are not settled";
            random_action();
        }
        failure_percent_ = 0;
        finish_reading();
        for (int turn = 0; !pipeline_->idle() && !testing::Test::HasFailure(); turn++) {
            ASSERT_LT(turn, 10'000) << model_.unsettled() << " events are never settled";
            drain();
        }
        if (testing::Test::HasFailure())
            return;
        model_.expect_everything_delivered();
        EXPECT_EQ(pipeline_->unsettled(), 0u);
        EXPECT_EQ(pipeline_->failures(), 0u) << "the last answer was a confirmation";
    }

  private:
    void random_action() {
        switch (dice_.below(8)) {
            case 0:
            case 1:
            case 2:
                if (pipeline_->has_room())
                    read_some();
                else
                    answer_one();
                break;
            case 3:
            case 4:
            case 5:
                answer_one();
                break;
            case 6:
                clock_.advance(static_cast<Micros>(dice_.below(milliseconds(5))));
                break;
            case 7:
                if (sink_->batches().empty())
                    wait_as_the_relay_would();
                break;
        }
        step();
    }

    // --- the side of the log

    void read_some() {
        if (!reading_) {
            pipeline_->open_window();
            model_.open_window();
            reading_ = true;
            const std::size_t count = dice_.percent(15) ? 0 : dice_.between(1, 30);
            unread_ = sequence_.of_window(dice_, count);
        } else if (!unread_.empty()) {
            read_block();
        } else {
            pipeline_->close_window();
            model_.close_window();
            reading_ = false;
        }
    }

    void read_block() {
        const std::size_t count = std::min(unread_.size(), dice_.between(1, 8));
        std::vector<EventSpec> specs;
        for (std::size_t i = 0; i < count; i++)
            specs.push_back(random_event(unread_[i]));
        unread_.erase(unread_.begin(), unread_.begin() + static_cast<std::ptrdiff_t>(count));

        EventBlock* block = pipeline_->take_block();
        for (const EventSpec& spec : specs)
            ASSERT_TRUE(append(*block, spec));
        model_.admit(specs, block->bytes());
        pipeline_->admit(block);
    }

    EventSpec random_event(std::int64_t position) {
        std::string key;
        if (!dice_.percent(unordered_percent_))
            key = std::string(dice_.between(1, 20), 'k') + std::to_string(dice_.below(keys_));
        return {
            .position = position,
            .key = std::move(key),
            .payload = std::string(dice_.between(1, 60), static_cast<char>('a' + position % 26)),
            .occurred_at = clock_.unix_now() - static_cast<Micros>(dice_.below(1'000)),
            .topic = std::string(1, static_cast<char>('A' + dice_.below(topics_)))};
    }

    void finish_reading() {
        while (reading_ && !testing::Test::HasFailure()) {
            read_some();
            step();
        }
    }

    // --- the side of the destination

    void watch_submission(const Batch& batch) {
        EXPECT_GE(clock_.now(), not_before_) << "the destination was to be left alone";
        model_.submitted(batch);
    }

    void answer_one() {
        if (sink_->batches().empty())
            return;
        if (!capabilities_.ordered && dice_.percent(failure_percent_))
            divide_one();
        else if (dice_.percent(failure_percent_))
            fail_one();
        else
            confirm_one();
    }

    std::size_t choose_batch() {
        if (capabilities_.ordered)
            return 0;
        const std::size_t count = sink_->batches().size();
        return dice_.percent(newest_first_percent_) ? count - 1 : dice_.below(count);
    }

    void confirm_one() {
        const auto positions = sink_->in_flight().at(choose_batch());
        model_.confirmed(positions);
        sink_->confirm(positions.front());
    }

    // The destination accepts some events of a batch.
    void divide_one() {
        const auto positions = sink_->in_flight().at(choose_batch());
        std::vector<EventOutcome> of_events;
        for (std::size_t i = 0; i < positions.size(); i++)
            of_events.push_back({dice_.percent(50) ? Fate::confirmed : Fate::unavailable, "busy"});
        model_.divided(positions, of_events);
        sink_->divide(positions.front(), of_events);
    }

    void fail_one() {
        const auto in_flight = sink_->in_flight();
        const auto& failed = in_flight.at(choose_batch());
        if (capabilities_.ordered)
            for (const auto& batch : in_flight)
                model_.failed(batch);
        else
            model_.failed(failed);
        const Micros retry_after =
            dice_.percent(20) ? static_cast<Micros>(dice_.below(milliseconds(100))) : 0;
        sink_->fail(failed.front(), "refused", retry_after);

        const std::uint64_t failures = pipeline_->failures();
        step();
        if (pipeline_->failures() > failures)
            not_before_ = clock_.now() + std::max<Micros>(1, retry_after);
    }

    void step() {
        pipeline_->step();
        record();
        model_.expect_agreement(*pipeline_, stats_);
        const bool reads_on = reading_ && pipeline_->has_room();
        if (sink_->batches().empty() && model_.unsettled() > 0 && !reads_on) {
            EXPECT_NE(pipeline_->deadline(), never) << "nothing would ever wake the relay";
        }
    }

    // Events at fault leave at once; this test is not about them.
    void record() {
        pipeline_->gather_records();
        for (const Record& record : pipeline_->records()) {
            model_.recorded(record.event->position);
            pipeline_->free_key(record.event->ordering_key);
        }
        pipeline_->recorded();
    }

    void wait_as_the_relay_would() {
        if (pipeline_->deadline() != never)
            clock_.advance_to(pipeline_->deadline());
    }

    void drain() {
        answer_one();
        step();
        if (sink_->batches().empty())
            wait_as_the_relay_would();
        step();
    }

    Dice dice_;
    const Capabilities capabilities_;
    const Pipeline::Limits limits_;
    const std::size_t keys_;
    const std::size_t topics_;
    const std::size_t unordered_percent_;
    const std::size_t newest_first_percent_;  // so that some event is slow
    std::size_t failure_percent_;

    FakeClock clock_;
    DeliveryStats stats_;
    DeliveryModel model_;
    ScriptedSink* sink_ = nullptr;
    std::unique_ptr<Pipeline> pipeline_;

    Sequence sequence_;
    Positions unread_;
    bool reading_ = false;
    Micros not_before_ = 0;
};

struct Seeds {
    std::uint64_t first = 1;
    std::uint64_t count = many(300);
};

Seeds seeds_to_run() {
    const char* wanted = std::getenv("OUTBOX_TEST_SEED");
    if (wanted == nullptr)
        return {};
    const std::string_view text = wanted;
    const std::size_t colon = text.find(':');
    const auto first = parse_integer(text.substr(0, colon));
    const auto count = colon == std::string_view::npos ? std::optional<std::int64_t>(1)
                                                       : parse_integer(text.substr(colon + 1));
    EXPECT_TRUE(first && count) << "OUTBOX_TEST_SEED is <first>[:<count>], not " << text;
    return {static_cast<std::uint64_t>(first.value_or(1)),
            static_cast<std::uint64_t>(count.value_or(1))};
}

TEST(PipelineProperties, HoldForRandomLoad) {
    const Seeds seeds = seeds_to_run();
    for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        SCOPED_TRACE("OUTBOX_TEST_SEED=" + std::to_string(seed));
        RandomRun(seed).go();
        if (HasFailure())
            break;
    }
}

}  // namespace
}  // namespace outbox
