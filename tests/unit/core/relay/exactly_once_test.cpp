// A destination that takes events exactly once, in virtual time: whatever dies, and whenever, a reader
// of committed events gets each event once, and each key in order.
#include <gtest/gtest.h>

#include <random>

#include "unit/core/relay/fake_home.hpp"
#include "unit/many.hpp"

namespace outbox {
namespace {

class RandomRun {
  public:
    explicit RandomRun(std::uint64_t seed)
        : random_(seed),
          home_({.max_batch_events = 1 + below(4), .max_batches = 1 + below(6), .lanes = true}, {},
                20 + below(200), seed) {
        home_.broker = &broker_;
        home_.rows_in_block = 1 + below(8);
        home_.poll = seconds(1);
        home_.save_interval = milliseconds(static_cast<std::int64_t>(below(300)));
        home_.start();
    }

    void go() {
        for (int turn = 0; turn < 500; turn++) {
            act();
            let_it_run();
        }
        calm_down();
        for (int turn = 0; turn < 30'000 && !done(); turn++)
            let_it_run();
        EXPECT_TRUE(done()) << home_.saved.table.rows().size() << " rows, "
                            << home_.relay->pipeline().unsettled() << " unsettled";
        check_arrivals();
        EXPECT_EQ(home_.doubtful, 0u);
        expect_no_rows_without_need();
    }

  private:
    std::size_t below(std::size_t n) { return random_() % n; }

    void act() {
        switch (below(12)) {
            case 0:
            case 1:
            case 2:
            case 3:
                produce();
                break;
            case 4:
            case 5:
                finish_some_transaction();
                break;
            case 6:
                home_.operator_has_lock = !home_.operator_has_lock;
                break;
            case 7:
                if (below(3) == 0)
                    crash(false);
                break;
            case 8:
                if (below(4) == 0)
                    crash(true);
                break;
            default:
                home_.clock.advance(milliseconds(static_cast<std::int64_t>(below(200))));
        }
    }
    void calm_down() {
        while (!home_.log.running().empty())
            home_.log.end(*home_.log.running().begin(), true);
        home_.operator_has_lock = false;
        home_.committed = true;
        trouble_ = false;
    }

    void let_it_run() {
        const Wish wish = home_.turn();
        if (!home_.transactional->known) {
            if (below(3) == 0)
                home_.transactional->learn();
        } else if (below(2) == 0) {
            answer(below(2));
        }
        if (wish == Wish::wait) {
            const Micros due = home_.relay->deadline(home_.committed);
            if (due != never)
                home_.clock.advance_to(due);
            if (!trouble_)
                home_.committed = true;
        }
    }

    void produce() {
        const auto& running = home_.log.running();
        const std::uint64_t xid = running.empty() || (running.size() < 4 && below(2) == 0)
                                      ? home_.log.begin()
                                      : *std::next(running.begin(), below(running.size()));
        for (std::size_t n = 1 + below(4); n > 0; n--) {
            const std::string key = below(6) == 0 ? "" : std::string(1, char('a' + below(4)));
            home_.log.write(xid, key, key.empty() ? "t" : key);
        }
    }
    void finish_some_transaction() {
        const auto& running = home_.log.running();
        if (running.empty())
            return;
        home_.log.end(*std::next(running.begin(), below(running.size())), below(5) != 0);
        home_.committed = true;
    }

    static bool is_poison(std::int64_t position) { return position % 13 == 5; }
    const Batch* poisoned(std::size_t line) const {
        for (const Batch* batch : home_.transactional->transaction(line).batches)
            for (std::int64_t position : positions_of(*batch))
                if (is_poison(position))
                    return batch;
        return nullptr;
    }

    // A random answer of the destination.
    void answer(std::size_t line) {
        TransactionalSink& sink = *home_.transactional;
        if (!sink.is_open(line))
            return;
        if (const Batch* batch = poisoned(line))
            sink.refuse(line, *batch, below(4) == 0);
        else if (trouble_ && below(5) == 0)
            sink.end(line, std::array{Fate::unavailable, Fate::failed, Fate::undone}[below(3)]);
        else if (sink.may_commit(line)) {
            sink.take_effect(line);
            sink.end(line, Fate::confirmed);
        }
    }

    // What was noted may take effect although the relay dies, and what was not noted cannot.
    void crash(bool server) {
        TransactionalSink& sink = *home_.transactional;
        for (std::size_t line = 0; line < 2; line++)
            if (sink.known && sink.may_commit(line) && poisoned(line) == nullptr && below(2) == 0)
                sink.take_effect(line);
        if (server)
            home_.saved = home_.flushed;
        home_.start();
    }

    void check_arrivals() const {
        std::map<std::int64_t, int> times;
        std::map<std::string, std::int64_t> last;
        for (std::int64_t position : broker_.arrivals) {
            const FakeLog::Row& row = home_.log.rows().at(static_cast<std::size_t>(position - 1));
            EXPECT_FALSE(row.rolled_back) << "event " << position << " was rolled back";
            EXPECT_EQ(++times[position], 1) << "event " << position << " arrived again";
            if (!row.key.empty()) {
                EXPECT_GT(position, last[row.key]) << "key " << row.key;
                last[row.key] = position;
            }
        }
        for (const FakeLog::Row& row : home_.log.rows()) {
            EXPECT_EQ(times[row.position], !row.rolled_back && !is_poison(row.position))
                << "event " << row.position;
        }
    }

    // Of each line the last number stays, and a row of a transaction that was rolled back last.
    void expect_no_rows_without_need() {
        home_.clock.advance(seconds(1));
        for (int turn = 0; turn < 20; turn++)
            home_.turn();
        for (const auto& [id, row] : home_.saved.transactions.rows()) {
            const std::int64_t committed = broker_.committed[id.first].value();
            EXPECT_GE(id.second, committed);
            EXPECT_TRUE(row.positions.empty() || id.second > committed);
        }
    }

    bool done() const {
        return home_.transactional->known && home_.relay->pipeline().idle() &&
               !home_.relay->has_records() &&
               std::all_of(home_.log.rows().begin(), home_.log.rows().end(),
                           [&](const FakeLog::Row& row) {
                               return row.rolled_back || home_.saved.has_passed(row);
                           }) &&
               std::all_of(home_.saved.table.rows().begin(), home_.saved.table.rows().end(),
                           [](const auto& row) { return row.second.dead; });
    }

    std::mt19937_64 random_;
    // Of an earlier relay. Otherwise a first transaction that is lost looks like one that was forgotten.
    Broker broker_{.committed = {7, 7}};
    FakeHome home_;
    bool trouble_ = true;
};

TEST(ExactlyOnce, EachEventArrivesOnceWithEachSeed) {
    for (std::uint64_t seed = 1; seed <= many(500) && !testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        RandomRun(seed).go();
    }
}

}  // namespace
}  // namespace outbox
