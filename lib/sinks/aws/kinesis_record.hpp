// An event as a record of Kinesis. A record is bytes and a partition key, and has no headers, so it
// is a CloudEvents document with everything of the event, or the payload alone.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/event.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct RecordStyle {
    EventFormat format = EventFormat::structured;  // or `payload`
    std::string source_prefix{};                   // of CloudEvents
};

// Appends the partition key: the ordering key, or its SHA-256 if it is too long for Kinesis. Events
// without an ordering key have their id, so that they spread over all shards.
void append_partition_key(std::string& out, const Event& event);

class KinesisRecord {
  public:
    // Turns this into the record of an event, which must outlive it. Reuses memory. May throw
    // std::bad_alloc.
    void assign(const Event& event, const RecordStyle& style);

    std::string_view data() const { return data_; }
    const std::string& partition_key() const { return partition_key_; }
    // The size that counts towards the limits of the service.
    std::size_t size() const { return data_.size() + partition_key_.size(); }

  private:
    std::string_view data_;
    std::string document_;  // `data_` may point to it
    std::string partition_key_;
};

// Returns an upper bound of KinesisRecord::size().
std::size_t record_size_bound(const Event& event, const RecordStyle& style) noexcept;

// Write the request PutRecords. Call begin_records() first, then add_record() for each record.
void begin_records(std::string& body, std::string_view address);
void add_record(std::string& body, const KinesisRecord& record);
void end_records(std::string& body);

}  // namespace outbox
