// A batch that a producer sends: its events become records, and the reports on the records become
// the outcome of the batch.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/sink.hpp"
#include "sinks/kafka/options.hpp"
#include "sinks/kafka/producer.hpp"
#include "sinks/kafka/record.hpp"
#include "sinks/kafka/schemas.hpp"

namespace outbox {

// It must stay where it is while the producer has records of it.
struct Sending {
    Batch* batch = nullptr;
    std::string topic;
    Micros sent_at = 0;
    std::size_t left = 0;  // records without a report
    std::vector<Delivery> deliveries{};
    std::deque<Delivery> tombstones{};     // follow events, which point to them
    std::vector<SchemaOfEvent> schemas{};  // one for each event; empty if payloads have no frame
    std::string complaint{};               // why an event could not be made a record
    void* line = nullptr;                  // the line of the sink that sends it
};

class BatchSender {
  public:
    explicit BatchSender(const KafkaOptions& options);

    // Gives the events to the producer. An event that it does not take has its report at once, and
    // so have those behind it with the same key.
    void send(Producer& producer, Sending& sending);

    // `unreported` is the fate of records without a report, and `why` the reason. With `one_by_one`
    // each record had a request of its own.
    Outcome outcome_of(const Sending& sending, Fate unreported, const std::string& why,
                       bool one_by_one) const;

  private:
    rd_kafka_resp_err_t produce(Producer& producer, Sending& sending, std::size_t i);
    rd_kafka_resp_err_t produce_tombstone(Producer& producer, Sending& sending, std::size_t i);
    bool wants_tombstone(const Event& event) const;
    std::optional<std::int32_t> named_partition(const Event& event) const;

    const std::string partition_header_;
    const std::optional<TopicFilter> tombstone_after_;
    const bool receipts_;
    RecordEncoder encoder_;
};

// Returns the report that decides about an event: that of its first record that has not arrived.
const Delivery& decisive(const Delivery& delivery) noexcept;

// Returns true if a broker refused records that were sent together. It does not say which of them
// was to blame.
bool is_refused_together(const Delivery& delivery, bool one_by_one) noexcept;

bool any_confirmed(const Outcome& outcome) noexcept;

}  // namespace outbox
