// Simulates a destination that takes events exactly once, the sink that speaks to it, and the table
// outbox.transaction (sql/pg_outbox/transaction.sql).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/relay/noted.hpp"
#include "core/transactions.hpp"
#include "unit/core/pipeline/scripted_sink.hpp"
#include "unit/core/relay/delivery_table.hpp"

namespace outbox {

// The destination, which outlives relays and servers.
struct Broker {
    std::array<std::optional<std::int64_t>, 2> committed{};
    std::vector<std::int64_t>
        arrivals{};  // positions of events, as a reader of committed ones sees
};

// A value, so that a copy is a backup.
class TransactionTable {
  public:
    struct Row {
        std::set<std::int64_t> positions;
        std::set<std::int64_t> retries;
    };

    const std::map<std::pair<std::size_t, std::int64_t>, Row>& rows() const { return rows_; }

    void note(const Transaction& transaction) {
        Row row;
        for (const Batch* batch : transaction.batches)
            for (const Event* event : batch->events)
                (event->retry ? row.retries : row.positions).insert(event->position);
        rows_[{transaction.line, transaction.number}] = row;
    }
    void settle_retries(std::span<const std::optional<std::int64_t>> committed) {
        for (auto& [id, row] : rows_)
            if (id.second <= committed[id.first].value_or(0))
                row.positions.merge(row.retries);
    }
    void forget(std::span<const NotedTransactions::Passed> passed) {
        for (std::size_t line = 0; line < passed.size(); line++) {
            std::erase_if(rows_, [&](const auto& row) {
                return row.first.first == line && row.first.second < passed[line].last;
            });
            if (const auto last = rows_.find({line, passed[line].last}); last != rows_.end())
                last->second = {};
        }
    }
    // Returns the number of events that the destination may have and does not know of any more.
    std::size_t recover(std::span<const std::optional<std::int64_t>> committed,
                        DeliveryTable& delivery) {
        std::size_t doubtful = 0;
        std::erase_if(rows_, [&](const auto& row) {
            const auto& [line, number] = row.first;
            if (number <= committed[line].value_or(0))
                return false;
            if (!committed[line] || number > *committed[line] + 1)
                doubtful += row.second.positions.size() + row.second.retries.size();
            return true;
        });
        for (auto& [id, row] : rows_) {
            for (std::int64_t position : row.positions)
                delivery.erase(position);
            for (std::int64_t position : row.retries)
                delivery.erase(position);
            row.positions.merge(row.retries);
        }
        return doubtful;
    }
    std::set<std::int64_t> delivered() const {
        std::set<std::int64_t> positions;
        for (const auto& [id, row] : rows_)
            positions.insert(row.positions.begin(), row.positions.end());
        return positions;
    }

  private:
    std::map<std::pair<std::size_t, std::int64_t>, Row> rows_;
};

// Batches of some topics take the second line. A transaction ends as the test says.
class TransactionalSink final : public Sink, public Transactions {
  public:
    TransactionalSink(const Capabilities& capabilities, Broker& broker)
        : capabilities_(capabilities), broker_(broker) {}

    // The side of the pipeline and the relay.
    Capabilities capabilities() const noexcept override { return capabilities_; }
    int descriptor() const noexcept override { return -1; }
    Micros deadline() const noexcept override { return answers_.empty() ? never : 0; }
    void lane_of(const Event& event, std::string& lane) const override { lane += event.topic; }
    void submit(Batch& batch) override {
        lines_[line_of(batch)].waiting.push_back(&batch);
        begin();
    }
    void step(Micros, std::vector<Outcome>& outcomes) override {
        if (known)
            committed_ = heard_;
        begin();
        outcomes.insert(outcomes.end(), std::make_move_iterator(answers_.begin()),
                        std::make_move_iterator(answers_.end()));
        answers_.clear();
    }
    Transactions* transactions() noexcept override { return this; }

    bool is_known() const noexcept override { return known; }
    const std::string& trouble() const noexcept override { return trouble_; }
    std::span<const std::optional<std::int64_t>> committed() const noexcept override {
        return committed_;
    }
    const Transaction* to_note() const noexcept override {
        for (const Line& line : lines_)
            if (!line.transaction.batches.empty() && !line.noted)
                return &line.transaction;
        return nullptr;
    }
    void noted() override { lines_[to_note()->line].noted = true; }

    // The side of the test.
    bool known = false;
    void learn() {
        committed_ = heard_ = broker_.committed;
        known = true;
    }
    bool is_open(std::size_t line) const { return !lines_[line].transaction.batches.empty(); }
    bool may_commit(std::size_t line) const { return is_open(line) && lines_[line].noted; }
    const Transaction& transaction(std::size_t line) const { return lines_[line].transaction; }
    // What the destination does; the relay may never hear of it.
    void take_effect(std::size_t line) {
        const Transaction& transaction = lines_[line].transaction;
        broker_.committed[line] = transaction.number;
        for (const Batch* batch : transaction.batches)
            for (std::int64_t position : positions_of(*batch))
                broker_.arrivals.push_back(position);
    }
    // The answer: it took effect, or not.
    void end(std::size_t line, Fate fate) {
        heard_[line] = broker_.committed[line];
        for (Batch* batch : lines_[line].batches) {
            answers_.push_back({.batch = batch, .fate = fate, .error = "why"});
            if (fate != Fate::confirmed)
                fate = Fate::undone;
        }
        close(line);
    }
    // One batch is refused, the others are undone.
    void refuse(std::size_t line, const Batch& refused, bool permanent) {
        for (Batch* batch : lines_[line].batches)
            answers_.push_back({.batch = batch,
                                .fate = batch == &refused ? Fate::refused : Fate::undone,
                                .error = "poison",
                                .permanent = permanent});
        close(line);
    }

  private:
    struct Line {
        std::vector<Batch*> waiting;
        std::vector<Batch*> batches;
        Transaction transaction;
        bool noted = false;
    };

    static std::size_t line_of(const Batch& batch) {
        return batch.events.front()->topic == "c" ? 1 : 0;
    }
    void begin() {
        for (std::size_t i = 0; i < lines_.size(); i++) {
            Line& line = lines_[i];
            if (!line.batches.empty() || line.waiting.empty())
                continue;
            line.batches = std::exchange(line.waiting, {});
            line.transaction = {i, heard_[i].value_or(0) + 1, {}};
            line.transaction.batches.assign(line.batches.begin(), line.batches.end());
            line.noted = false;
        }
    }
    void close(std::size_t line) {
        lines_[line].batches.clear();
        lines_[line].transaction.batches.clear();
    }

    const Capabilities capabilities_;
    Broker& broker_;
    std::array<Line, 2> lines_;
    std::array<std::optional<std::int64_t>, 2> heard_{};  // with the answers
    std::array<std::optional<std::int64_t>, 2> committed_{};
    std::vector<Outcome> answers_;
    std::string trouble_;
};

}  // namespace outbox
