// Liveness in virtual time. Whatever fails, an event that its destination would accept is confirmed
// within a stated bound, and an event that is always refused becomes a dead letter. The
// destination, the clock and the table outbox.delivery are simulated; nothing waits for real time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "core/pipeline/pipeline.hpp"
#include "scripted_sink.hpp"
#include "unit/event_spec.hpp"
#include "unit/fake_clock.hpp"
#include "unit/many.hpp"

namespace outbox {
namespace {

enum class Trouble { none, slow, refused, failed, throttled, forbidden, hangs };

constexpr Micros request_time = milliseconds(2);
constexpr Micros request_timeout = seconds(5);
constexpr Micros retry_base = milliseconds(200), retry_max = seconds(5);
constexpr int max_attempts = 4;

// A destination whose answers depend on key, lane and time.
class World {
  public:
    World(const Capabilities& capabilities, std::size_t max_events, std::uint64_t seed)
        : random_(seed) {
        auto sink = std::make_unique<ScriptedSink>(capabilities);
        sink_ = sink.get();
        sink_->on_submit = [this](const Batch& batch) { sent(batch); };
        pipeline = std::make_unique<Pipeline>(std::move(sink),
                                              Pipeline::Limits{.max_events = max_events,
                                                               .backoff_base = milliseconds(100),
                                                               .backoff_cap = seconds(5)},
                                              clock, stats, seed);
    }

    // Adds a wanted event. The arguments are its key and topic.
    void enqueue(const std::string& key, const std::string& topic) {
        log_.push_back(
            {.position = ++last_, .key = key, .occurred_at = clock.now(), .topic = topic});
        specs_[last_] = log_.back();
    }

    // Runs until `reached` is true. Returns false if that takes longer than `bound`.
    bool run_until(const std::function<bool()>& reached, Micros bound) {
        end_ = clock.now() + bound;
        while (!reached()) {
            if (clock.now() >= end_)
                return false;
            for (int i = 0; i < 16 && clock.now() < end_; i++)  // looking takes longer than a turn
                turn();
        }
        return true;
    }

    bool all_good_confirmed() const {
        return std::all_of(specs_.begin(), specs_.end(), [&](const auto& entry) {
            return !acceptable(entry.second) || confirmed.contains(entry.first);
        });
    }
    bool all_settled() const {
        return std::all_of(specs_.begin(), specs_.end(), [&](const auto& entry) {
            return confirmed.contains(entry.first) || dead.contains(entry.first);
        });
    }

    // Describes the missing events.
    std::string where() const {
        std::size_t unread = log_.size(), rows = 0, locked = 0, memory = 0;
        for (const auto& [position, spec] : specs_)
            if (acceptable(spec) && !confirmed.contains(position)) {
                const auto row = table_.find(position);
                rows += row != table_.end();
                locked += row != table_.end() && row->second.locked;
                memory += row == table_.end();
            }
        return ", unread " + std::to_string(unread) + ", missing in rows " + std::to_string(rows) +
               ", of them locked " + std::to_string(locked) + ", in memory or unread " +
               std::to_string(memory) + ", last error " + pipeline->last_error() + ", room " +
               std::to_string(pipeline->has_room()) + ", retries " +
               std::to_string(pipeline->wants_retries());
    }

    std::map<std::string, Trouble> keys;
    std::set<std::string> lanes_missing;
    Micros down_until = 0;
    int random_percent = 0;  // share of requests that get a 503

    FakeClock clock;
    DeliveryStats stats;
    std::unique_ptr<Pipeline> pipeline;
    std::set<std::int64_t> confirmed, dead;
    std::vector<Micros> latencies;  // of events without trouble
    std::size_t written = 0;        // rows

  private:
    struct Row {
        bool failed = false, locked = false;
        int attempts = 0;
        Micros due = 0;
    };
    struct Answer {
        Micros at;
        std::int64_t position;
        Fate fate;
        Scope scope;
    };

    bool acceptable(const EventSpec& spec) const {
        const auto trouble = keys.find(spec.key);
        return (trouble == keys.end() || trouble->second == Trouble::none) &&
               !lanes_missing.contains(spec.topic);
    }

    void sent(const Batch& batch) {
        const Event& event = *batch.events.front();
        const std::string key(event.ordering_key);
        Answer answer{clock.now() + request_time, event.position, Fate::confirmed, {}};
        const auto trouble = keys.find(key);
        if (clock.now() < down_until) {
            answer.fate = Fate::failed;
        } else if (lanes_missing.contains(std::string(event.topic))) {
            answer.fate = Fate::unavailable;
            answer.scope = Scope::lane;
        } else if (trouble != keys.end()) {
            switch (trouble->second) {
                case Trouble::none:
                    break;
                case Trouble::slow:
                    answer.at += milliseconds(300 + static_cast<std::int64_t>(random_() % 2700));
                    break;
                case Trouble::refused:
                    answer.fate = Fate::refused;
                    break;
                case Trouble::failed:
                    answer.fate = Fate::failed;
                    break;
                case Trouble::throttled:
                    answer.fate = Fate::throttled;
                    break;
                case Trouble::forbidden:
                    answer.fate = Fate::unavailable;
                    answer.scope = Scope::destination;
                    break;
                case Trouble::hangs:
                    answer.fate = Fate::failed;
                    answer.at = clock.now() + request_timeout;
                    break;
            }
        } else if (random_() % 100 < static_cast<unsigned>(random_percent)) {
            answer.fate = Fate::throttled;
        }
        answers_.push_back(answer);
    }

    void turn() {
        if (!log_.empty() && pipeline->has_room())
            read();
        if (pipeline->wants_retries())
            load();
        pipeline->step();
        record();
        // Moves the clock to the next thing that happens.
        Micros next = std::min(pipeline->deadline(), end_);
        for (const Answer& answer : answers_)
            next = std::min(next, answer.at);
        if (pipeline->wants_retries())
            for (const auto& [key, positions] : rows_of_key_)
                if (const Row& row = table_.at(*positions.begin()); !row.locked)
                    next = std::min(next, std::max(row.due, clock.now() + milliseconds(1)));
        if (!log_.empty() && pipeline->has_room())
            next = clock.now();
        clock.advance_to(std::min(std::max(next, clock.now() + 100), clock.now() + seconds(1)));
        std::vector<Answer> due;
        std::erase_if(answers_, [&](const Answer& answer) {
            if (answer.at > clock.now())
                return false;
            due.push_back(answer);
            return true;
        });
        for (const Answer& answer : due) {
            if (answer.fate == Fate::confirmed) {
                for (const Batch* batch : sink_->batches())
                    if (batch->events.front()->position == answer.position)
                        for (const Event* event : batch->events)
                            confirm(specs_.at(event->position));
                sink_->confirm(answer.position);
            } else {
                sink_->fail_in(answer.position, answer.fate, answer.scope);
            }
        }
        pipeline->step();
        record();
        if (pipeline->take_recovered())
            for (auto& [position, row] : table_)
                if (row.failed && row.attempts == 0)
                    row.due = clock.now();
    }

    void confirm(const EventSpec& spec) {
        confirmed.insert(spec.position);
        if (acceptable(spec))
            latencies.push_back(clock.now() - spec.occurred_at);
    }

    void read() {
        pipeline->open_window();
        EventBlock* block = pipeline->take_block();
        std::size_t count = 0;
        for (; count < std::min<std::size_t>(log_.size(), 50); count++)
            append(*block, log_[count]);
        log_.erase(log_.begin(), log_.begin() + static_cast<std::ptrdiff_t>(count));
        pipeline->admit(block);
        pipeline->close_window();
    }

    bool is_first(std::int64_t position) const {
        const auto rows = rows_of_key_.find(specs_.at(position).key);
        return rows != rows_of_key_.end() && *rows->second.begin() == position;
    }
    void erase_row(std::int64_t position) {
        const auto rows = rows_of_key_.find(specs_.at(position).key);
        if (table_.erase(position) > 0 && rows->second.erase(position) > 0 && rows->second.empty())
            rows_of_key_.erase(rows);
    }

    void record() {
        std::set<std::string> touched;
        pipeline->gather_records();
        for (const Record& record : pipeline->records()) {
            const std::int64_t position = record.event->position;
            touched.insert(specs_.at(position).key);
            if (record.kind == Record::Kind::confirmed) {
                erase_row(position);
                continue;
            }
            if (!table_.contains(position)) {
                written++;
                table_[position].due = clock.now();
                rows_of_key_[specs_.at(position).key].insert(position);
            }
            Row& row = table_[position];
            row.locked = record.kind == Record::Kind::moved;
            const auto wait = [&](int steps) {
                return clock.now() + std::min(retry_max, retry_base << std::min(steps, 10));
            };
            if (record.kind == Record::Kind::released) {
                row.failed = true;
                row.due = wait(static_cast<int>(record.steps) - 1);
            } else if (record.kind == Record::Kind::refused) {
                row.failed = true;
                if (++row.attempts >= max_attempts) {
                    dead.insert(position);
                    erase_row(position);
                } else {
                    row.due = wait(row.attempts - 1);
                }
            }
        }
        for (const std::string& key : touched)
            if (!rows_of_key_.contains(key))
                pipeline->free_key(key);
        pipeline->recorded();
    }

    void load() {
        EventBlock* block = nullptr;
        std::vector<EventSpec> claimed;
        for (auto& [position, row] : table_)
            if (!row.locked && row.due <= clock.now() && is_first(position) &&
                claimed.size() < 50) {
                claimed.push_back(specs_.at(position));
                row.locked = true;
            }
        if (claimed.empty())
            return;
        block = pipeline->take_block();
        for (const EventSpec& spec : claimed) {
            append(*block, spec);
            Event& event = block->events().back();
            event.has_failed = table_.at(spec.position).attempts > 0;
            event.key_failed = event.has_failed;
        }
        pipeline->admit_retries(block);
    }

    std::mt19937_64 random_;
    ScriptedSink* sink_ = nullptr;
    std::vector<EventSpec> log_;
    std::map<std::int64_t, EventSpec> specs_;
    std::map<std::int64_t, Row> table_;
    std::map<std::string, std::set<std::int64_t>> rows_of_key_;
    std::vector<Answer> answers_;
    std::int64_t last_ = 0;
    Micros end_ = never;  // of run_until()
};

constexpr Capabilities single_events{.max_batches = 8, .more_batches = 24};

TEST(PipelineLiveness, EventsThatAlwaysFailBecomeDeadLettersAndDelayNoOthers) {
    for (Trouble trouble : {Trouble::refused, Trouble::failed}) {
        World world(single_events, 1000, 1);
        for (int i = 0; i < 100; i++) {
            const std::string key = "k" + std::to_string(i);
            if (i % 10 == 0)
                world.keys[key] = trouble;
            world.enqueue(key, "t");
        }
        EXPECT_TRUE(world.run_until([&] { return world.all_good_confirmed(); }, seconds(2)));
        world.run_until([] { return false; }, seconds(1));
        world.enqueue("fresh", "t");
        EXPECT_TRUE(world.run_until([&] { return world.all_good_confirmed(); }, milliseconds(200)))
            << "a fresh event goes out at once";
        // The pauses are 0.2, 0.4 and 0.8 s.
        EXPECT_TRUE(world.run_until([&] { return world.dead.size() == 10; }, milliseconds(2100)))
            << world.dead.size();
    }
}

TEST(PipelineLiveness, KeysThatHangCostTheirOwnSlots) {
    World world(single_events, 1000, 1);
    for (int i = 0; i < 5000; i++) {
        const std::string key = "k" + std::to_string(i % 500);
        if (i % 500 % 33 == 0)
            world.keys[key] = Trouble::hangs;
        world.enqueue(key, "t");
    }
    // Eight at a time, 2 ms each, take 1.25 s.
    EXPECT_TRUE(world.run_until([&] { return world.all_good_confirmed(); }, milliseconds(2500)))
        << world.confirmed.size() << " confirmed, unsettled " << world.pipeline->unsettled()
        << ", suspects " << world.pipeline->suspects() << ", lanes down "
        << world.pipeline->lanes_down() << ", room " << world.pipeline->has_room();
}

// One key in a hundred takes 0.3 to 3 s for each event, which is more than all connections together
// could do if such requests were counted among those in flight.
TEST(PipelineLiveness, SlowKeysDelayNoOthers) {
    const auto p99 = [](Trouble of_some) {
        World world({.max_batches = 16, .more_batches = 48}, 10'000, 1);
        for (int i = 0; i < 5000; i += 100)
            world.keys["k" + std::to_string(i)] = of_some;
        for (int i = 0; i < 20'000; i++) {  // 2,000 a second
            world.enqueue("k" + std::to_string(i * 7919 % 5000), "t");
            world.run_until([] { return false; }, 500);
        }
        EXPECT_GT(world.latencies.size(), 19'000u);
        std::ranges::sort(world.latencies);
        return world.latencies[world.latencies.size() * 99 / 100];
    };
    EXPECT_LE(p99(Trouble::slow), 2 * p99(Trouble::none));
}

TEST(PipelineLiveness, AMissingLaneDoesNotDelayOthersAndCatchesUpOnceItExists) {
    World world({.max_batches = 8, .lanes = true}, 400, 1);
    for (int i = 0; i < 5000; i++)
        world.enqueue("k" + std::to_string(i % 500), "t" + std::to_string(i % 10));
    world.lanes_missing.insert("t3");
    EXPECT_TRUE(world.run_until([&] { return world.all_good_confirmed(); }, milliseconds(2500)));
    EXPECT_TRUE(world.dead.empty());
    world.lanes_missing.clear();
    EXPECT_TRUE(world.run_until([&] { return world.all_settled(); }, seconds(15)));
    EXPECT_TRUE(world.dead.empty()) << "nobody is to blame";
}

TEST(PipelineLiveness, AnOutageWritesNothing) {
    World world(single_events, 1000, 1);
    for (int i = 0; i < 2000; i++)
        world.enqueue("k" + std::to_string(i), "t");
    world.down_until = world.clock.now() + seconds(600);
    world.run_until([] { return false; }, seconds(590));
    EXPECT_EQ(world.written, 0u);
    EXPECT_LT(world.stats.failures, 600u) << "it is not hammered";
    EXPECT_TRUE(world.run_until([&] { return world.all_settled(); }, seconds(30)));
    EXPECT_EQ(world.written, 0u);
}

// The bound covers an outage that ends at most `backoff_cap` late, two pauses of `retry_max` for
// retries, and the timeouts of hanging keys ahead of a suspect that does not hang.
TEST(PipelineLiveness, HoldsForRandomSetsOfFailingKeysLanesAndPeriods) {
    for (std::uint64_t seed = 1; seed <= many(30); seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937_64 random(seed);
        const auto below = [&](std::size_t n) { return random() % n; };
        Capabilities capabilities{.max_batches = 1 + below(16)};
        capabilities.more_batches = below(2) * 3 * capabilities.max_batches;
        capabilities.lanes = below(2) == 0;
        World world(capabilities, std::array<std::size_t, 2>{400, 2000}[below(2)], seed);
        // If the destination takes one request at a time, a request that hangs blocks it.
        const std::size_t kinds = capabilities.max_batches < 4 ? 4 : 5;
        const std::size_t keys = 20 + below(200), lanes = 1 + below(6);
        for (std::size_t i = 0; i < keys; i++)
            if (below(10) == 0)
                world.keys["k" + std::to_string(i)] =
                    std::array{Trouble::refused, Trouble::failed, Trouble::throttled,
                               Trouble::forbidden, Trouble::hangs}[below(kinds)];
        if (capabilities.lanes && lanes > 1 && below(2) == 0)
            world.lanes_missing.insert("t0");
        if (below(2) == 0)
            world.down_until = world.clock.now() + static_cast<Micros>(below(seconds(20)));
        world.random_percent = static_cast<int>(below(6));
        for (std::size_t i = 0; i < 1500; i++) {
            const std::size_t key = below(keys);
            world.enqueue("k" + std::to_string(key), "t" + std::to_string(key % lanes));
        }
        ASSERT_TRUE(world.run_until([&] { return world.all_good_confirmed(); }, seconds(180)))
            << world.confirmed.size() << " confirmed; suspects " << world.pipeline->suspects()
            << ", unsettled " << world.pipeline->unsettled() << ", failures "
            << world.pipeline->failures() << world.where() << ", max_batches "
            << capabilities.max_batches;
    }
}

}  // namespace
}  // namespace outbox
