// Copies rows with the columns of outbox.event into blocks of events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/event.hpp"
#include "core/sql/flat_json.hpp"
#include "core/sql/rows.hpp"

namespace outbox::sql {

class EventRows {
  public:
    // Returns false if the rows do not have the columns of an event.
    bool start(Rows rows);

    int size() const noexcept { return rows_.size(); }
    const Rows& rows() const noexcept { return rows_; }
    std::optional<std::int64_t> position(int row) const noexcept {
        return rows_.bigint(row, position_);
    }
    // Bytes of the values of all rows, about.
    std::size_t bytes() const noexcept;

    enum class Copied { yes, block_is_full, unreadable };
    // Throws std::bad_alloc if not even an empty block has room.
    Copied copy(int row, EventBlock& block);

  private:
    static constexpr int texts = 6;

    bool read_headers(std::string_view value);
    std::size_t headers_size() const noexcept;
    void copy_headers(Event& event, EventBlock& block);

    Rows rows_;
    int position_ = -1, xid_ = -1, occurred_at_ = -1, event_id_ = -1, version_ = -1;
    int schema_version_ = -1, source_event_id_ = -1, headers_ = -1, payload_ = -1;
    int fault_ = -1;  // only if expressions may fail, or texts be unreadable
    int text_[texts] = {};
    std::vector<FlatMember> members_;
    std::string scratch_;
};

}  // namespace outbox::sql
