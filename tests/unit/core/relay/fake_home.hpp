// A simulated home of a relay: a log with transactions, the tables that outlive the relay, operators,
// and crashes of the relay and of the server.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/relay/relay.hpp"
#include "unit/core/pipeline/scripted_sink.hpp"
#include "unit/core/relay/delivery_table.hpp"
#include "unit/core/relay/endpoints_sink.hpp"
#include "unit/core/relay/transactional_sink.hpp"
#include "unit/event_spec.hpp"
#include "unit/fake_clock.hpp"

namespace outbox {

using Wish = Relay::Wish;

// A log in which transactions take positions while they run, and finish in any order. A key belongs
// to one running transaction, like a row that is locked.
class FakeLog {
  public:
    struct Row {
        std::int64_t position;
        std::uint64_t xid;
        std::string key;
        std::string topic;
        bool rolled_back = false;
    };

    std::uint64_t begin() {
        running_.insert(next_xid_);
        return next_xid_++;
    }
    // Returns false if the key belongs to another transaction.
    bool write(std::uint64_t xid, const std::string& key, const std::string& topic) {
        if (!key.empty() && owners_.try_emplace(key, xid).first->second != xid)
            return false;
        rows_.push_back({++last_position_, xid, key, topic});
        return true;
    }
    // Rolls back the rows of its last subtransaction.
    void roll_back_last(std::uint64_t xid) {
        for (auto row = rows_.rbegin(); row != rows_.rend(); ++row)
            if (row->xid == xid) {
                row->rolled_back = true;
                return;
            }
    }
    void end(std::uint64_t xid, bool commits) {
        running_.erase(xid);
        std::erase_if(owners_, [&](const auto& owner) { return owner.second == xid; });
        for (Row& row : rows_)
            if (row.xid == xid && !commits)
                row.rolled_back = true;
    }

    Snapshot snapshot() const {
        Snapshot now{next_xid_, next_xid_, {running_.begin(), running_.end()}};
        if (!running_.empty())
            now.xmin = *running_.begin();
        return now;
    }
    const std::vector<Row>& rows() const { return rows_; }
    const std::string& topic_at(std::int64_t position) const {
        return rows_[static_cast<std::size_t>(position) - 1].topic;
    }
    const std::set<std::uint64_t>& running() const { return running_; }

  private:
    std::vector<Row> rows_;  // in order of position
    std::set<std::uint64_t> running_;
    std::map<std::string, std::uint64_t> owners_;
    std::uint64_t next_xid_ = 100;
    std::int64_t last_position_ = 0;
};

// The state that outlives a relay: the row of outbox.cursor, and the tables outbox.delivery and
// outbox.transaction.
struct Saved {
    Cursor cursor;
    DeliveryTable table;
    TransactionTable transactions{};

    // True if the relay will not read this row again.
    bool has_passed(const FakeLog::Row& row) const {
        return cursor.done.finished(row.xid) ||
               (cursor.upto && cursor.upto->finished(row.xid) && row.position <= cursor.position);
    }
};

// Does the tasks of a relay.
class FakeHome {
  public:
    FakeHome(const Capabilities& capabilities, const DeliveryTable::Rules& rules,
             std::size_t max_events, std::uint64_t seed)
        : saved{{}, DeliveryTable(rules)}, capabilities_(capabilities), seed_(seed) {
        limits_ = {
            .max_events = max_events, .backoff_base = milliseconds(10), .backoff_cap = seconds(1)};
        flushed = saved;
        start();
    }

    // Starts a relay from the saved state.
    void start() {
        relay.emplace(clock, stats, ++seed_);
        relay->set_intervals({.poll_min = poll, .poll_max = poll, .save = save_interval});
        restart();
    }
    void restart() {
        relay->cursor() = saved.cursor;
        saved.table.unlock_all(clock.now());
        recorded_.clear();
        for (const auto& [position, row] : saved.table.rows())
            recorded_.insert(position);
        window_.clear();
        relay->start(make_sink(), limits_);
        relay->follow_operator(paused);
        relay->pipeline().hold_keys(saved.table.held_keys());
        cursor_moved = false;
    }

    // Does one task and returns which.
    Wish turn() {
        const Wish wish = relay->next(committed);
        switch (wish) {
            case Wish::read:
                read();
                break;
            case Wish::take_retries:
                take_retries();
                break;
            case Wish::record:
                record();
                break;
            case Wish::save:
                save();
                break;
            case Wish::recover:
                recover();
                break;
            case Wish::pause:
                pause();
                break;
            case Wish::note:
                note();
                break;
            case Wish::consult:
                consult();
                break;
            case Wish::wait:
                break;
        }
        if (cursor_moved)
            restart();
        return wish;
    }

    FakeClock clock;
    DeliveryStats stats;
    FakeLog log;
    Saved saved;
    Saved flushed = saved;  // the state after a crash of the server
    std::optional<Relay> relay;
    ScriptedSink* sink = nullptr;
    Broker* broker = nullptr;  // if set, it takes events exactly once
    TransactionalSink* transactional = nullptr;
    bool serves_endpoints = false;  // the sink has questions
    EndpointsSink* endpoints = nullptr;
    int questions = 0;
    bool questions_fail = false;
    std::size_t doubtful = 0;  // events that may have arrived twice
    std::function<void(const Batch&)> on_submit;
    bool committed = false;  // since the last look
    bool paused = false;
    std::string why;  // it has paused itself
    bool operator_has_lock = false;
    bool cursor_moved = false;
    Micros save_interval = milliseconds(100);
    Micros poll = seconds(3600);
    std::size_t rows_in_block = 3;
    Micros time_per_record = 0;

  private:
    std::unique_ptr<Sink> make_sink() {
        if (broker != nullptr) {
            auto made = std::make_unique<TransactionalSink>(capabilities_, *broker);
            transactional = made.get();
            return made;
        }
        if (serves_endpoints) {
            auto made = std::make_unique<EndpointsSink>();
            endpoints = made.get();
            return made;
        }
        auto scripted = std::make_unique<ScriptedSink>(capabilities_);
        sink = scripted.get();
        sink->on_submit = on_submit;
        return scripted;
    }

    void recover() {
        if (!has_lock())
            return;
        doubtful += saved.transactions.recover(relay->transactions().committed(), saved.table);
        saved.table.unlock_all(clock.now());
        recorded_ = saved.transactions.delivered();
        for (const auto& [position, row] : saved.table.rows())
            recorded_.insert(position);
        relay->pipeline().hold_keys(saved.table.held_keys());
        relay->recovered();
    }
    void pause() {
        if (!has_lock())
            return;
        paused = true;
        why = relay->pipeline().gone();
        relay->paused();
    }
    void note() {
        if (!has_lock())
            return;
        saved.transactions.note(*relay->transactions().to_note());
        flushed = saved;
        relay->noted();
    }
    void consult() {
        if (!has_lock())
            return;
        relay->question();
        questions++;
        if (questions_fail) {
            relay->consult_failed();
            return;
        }
        EndpointAnswer answer;
        answer.known = "answer " + std::to_string(questions);
        relay->consulted(std::move(answer));
    }

    void read() {
        if (!relay->in_window() && !look())
            return;
        EventBlock& block = relay->block();
        std::size_t n = 0;
        std::int64_t last = 0;
        for (; n < window_.size() && n < rows_in_block; n++) {
            const FakeLog::Row& row = window_[n];
            last = row.position;
            if (!row.rolled_back && !recorded_.contains(row.position))
                append(
                    block,
                    {.position = row.position, .key = row.key, .topic = row.topic, .xid = row.xid});
        }
        window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(n));
        relay->block_read(window_.empty(), last);
    }
    // Finds transactions that finished since the frontier and were not settled before.
    bool look() {
        committed = false;
        const Snapshot now = log.snapshot();
        const Settled& settled = relay->settled_before();
        for (const FakeLog::Row& row : log.rows())
            if (!relay->frontier().finished(row.xid) && now.finished(row.xid) &&
                !(settled.any && settled.in.finished(row.xid) && row.position <= settled.position))
                window_.push_back(row);
        if (window_.empty())
            relay->nothing_found(now);
        else
            relay->window_found(now, window_.size() > 1);
        return !window_.empty();
    }

    // Nothing may be written if the cursor was moved by an operator.
    bool has_lock() {
        if (!operator_has_lock && !cursor_moved)
            return true;
        relay->cursor_is_busy();
        return false;
    }
    void record() {
        if (!has_lock())
            return;
        relay->pipeline().gather_records();
        const std::vector<Record>& records = relay->pipeline().records();
        clock.advance(time_per_record * static_cast<Micros>(records.size()));
        for (const std::string& key : saved.table.record(records, clock.now()))
            relay->pipeline().free_key(key);
        if (relay->has_transactions())
            saved.transactions.settle_retries(relay->transactions().committed());
        relay->recorded(saved.table.next_due());
    }
    void take_retries() {
        if (!has_lock())
            return;
        if (relay->hurries()) {
            saved.table.hurry(clock.now());
            relay->hurried(true);
        }
        const auto claimed = saved.table.claim(clock.now(), 50);
        if (!claimed.empty()) {
            EventBlock* block = relay->pipeline().take_block();
            for (const DeliveryTable::Claimed& row : claimed) {
                append(*block, {.position = row.position,
                                .key = row.row.key,
                                .topic = log.topic_at(row.position),
                                .key_failed = row.key_failed});
                block->events().back().has_failed = row.row.attempts > 0;
            }
            relay->pipeline().admit_retries(block);
        }
        relay->retries_taken(claimed.size(), saved.table.next_due());
    }
    void save() {
        if (!has_lock())
            return;
        saved.cursor = relay->cursor();
        saved.cursor.published = stats.all_delivered();
        saved.cursor.failures = stats.all_failures();
        saved.cursor.failing_since = relay->outage_to_save();
        saved.transactions.forget(relay->passed_transactions());
        if (relay->flush_is_due())
            flushed = saved;
        relay->saved();
    }

    const Capabilities capabilities_;
    Pipeline::Limits limits_;
    std::uint64_t seed_;
    std::vector<FakeLog::Row> window_;  // rows that are left to read
    std::set<std::int64_t> recorded_;
};

}  // namespace outbox
