// Reads events from the rows of outbox.fetch() and inbox.claim(), whose columns have the same
// names. Results are in binary format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "inbox/event.hpp"
#include "inbox/transaction.hpp"

namespace inbox {

class EventRows {
  public:
    explicit EventRows(Result result);

    int count() const { return result_.rows(); }
    Event event(int row) const;
    std::size_t size(int row) const;  // in bytes, of all columns
    std::string uuid(int row, const char* column) const;
    std::int64_t position(int row) const;  // 0 if there is none

  private:
    int column(const char* name) const;
    std::string_view value(int row, int column) const;

    Result result_;
    int position_, occurred_at_, event_id_, version_, schema_version_, source_event_id_, topic_,
        aggregate_type_, aggregate_id_, event_type_, ordering_key_, content_type_, headers_,
        payload_;
};

}  // namespace inbox
