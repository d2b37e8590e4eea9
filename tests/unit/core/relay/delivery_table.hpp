// Simulates the table outbox.delivery: the rules of sql/pg_outbox/delivery.sql, with a clock that
// the test sets. It is a value, so that a copy is a backup.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/pipeline/pipeline.hpp"
#include "unit/event_spec.hpp"

namespace outbox {

class DeliveryTable {
  public:
    struct Rules {
        int max_attempts = 4;
        bool blocks = false;  // on_dead_letter
        Micros retry_base = milliseconds(200);
    };
    struct Row {
        std::string key;
        bool failed = false;  // RETRY, otherwise PENDING
        bool dead = false;
        bool locked = false;
        int attempts = 0;
        std::optional<Micros> due{};
    };
    struct Claimed {
        std::int64_t position;
        Row row;
        bool key_failed;
    };

    explicit DeliveryTable(const Rules& rules) : rules_(rules) {}

    const std::map<std::int64_t, Row>& rows() const { return rows_; }

    void erase(std::int64_t position) { rows_.erase(position); }

    // Returns the keys that are no longer held.
    std::vector<std::string> record(const std::vector<Record>& records, Micros now) {
        std::set<std::string> keys;
        for (const Record& record : records) {
            keys.emplace(record.event->ordering_key);
            apply(record, now);
        }
        return promote(keys, now);
    }

    // Returns the rows that are due: first rows of their keys, each with the waiting rows behind
    // it.
    std::vector<Claimed> claim(Micros now, std::size_t at_most) {
        std::vector<Claimed> claimed;
        std::set<std::string> following;
        for (auto& [position, row] : rows_) {
            const bool is_first = row.key.empty() || first_of(row.key) == position;
            const bool due = is_first && row.due && *row.due <= now;
            const bool follows = !is_first && !row.failed && following.contains(row.key);
            if (row.locked || row.dead || !(due || follows) || claimed.size() == at_most) {
                following.erase(row.key);
                continue;
            }
            if (!row.key.empty() && row.attempts == 0)
                following.insert(row.key);
            row.locked = true;
            claimed.push_back({position, row, row.attempts > 0 || dead_before(position, row.key)});
        }
        return claimed;
    }

    // Unlocks all rows, as a relay does when it starts.
    void unlock_all(Micros now) {
        std::set<std::string> keys;
        for (auto& [position, row] : rows_) {
            row.locked = false;
            keys.insert(row.key);
        }
        promote(keys, now);
    }
    void hurry(Micros now) {
        for (auto& [position, row] : rows_)
            if (row.failed && row.attempts == 0 && row.due)
                row.due = now;
    }
    Micros next_due() const {
        Micros due = never;
        for (const auto& [position, row] : rows_)
            if (row.due && !row.locked)
                due = std::min(due, *row.due);
        return due;
    }
    std::vector<std::string> held_keys() const {
        std::set<std::string> keys;
        for (const auto& [position, row] : rows_)
            if (first_of(row.key))
                keys.insert(row.key);
        return {keys.begin(), keys.end()};
    }
    // Returns the row of the key that may be sent.
    std::optional<std::int64_t> first_of(const std::string& key) const {
        for (const auto& [position, row] : rows_)
            if (!key.empty() && row.key == key && (!row.dead || rules_.blocks))
                return position;
        return std::nullopt;
    }

  private:
    void apply(const Record& record, Micros now) {
        const std::int64_t position = record.event->position;
        if (record.kind == Record::Kind::confirmed) {
            rows_.erase(position);
            return;
        }
        const auto [row, is_new] =
            rows_.try_emplace(position, Row{.key = std::string(record.event->ordering_key)});
        change(row->second, record, now);
    }
    void change(Row& row, const Record& record, Micros now) const {
        if (record.kind == Record::Kind::parked)
            return;
        row.locked = record.kind == Record::Kind::moved;
        if (row.locked && row.key.empty())
            row.due = now;
        if (record.kind == Record::Kind::released) {
            row.failed = true;
            row.due = now + rules_.retry_base;
        } else if (record.kind == Record::Kind::refused) {
            row.failed = true;
            row.dead = record.permanent || ++row.attempts >= rules_.max_attempts;
            row.due =
                row.dead ? std::nullopt : std::optional(now + (rules_.retry_base << row.attempts));
        }
    }
    std::vector<std::string> promote(const std::set<std::string>& keys, Micros now) {
        std::vector<std::string> free;
        for (const std::string& key : keys) {
            if (key.empty())
                continue;
            const std::optional<std::int64_t> first = first_of(key);
            if (!first)
                free.push_back(key);
            else if (Row& row = rows_.at(*first); !row.failed && !row.due)
                row.due = now;
        }
        return free;
    }
    bool dead_before(std::int64_t position, const std::string& key) const {
        bool dead = false;
        for (const auto& [before, row] : rows_)
            if (before < position && !key.empty() && row.key == key)
                dead = row.attempts > 0;
        return dead;
    }

    Rules rules_;
    std::map<std::int64_t, Row> rows_;
};

}  // namespace outbox
