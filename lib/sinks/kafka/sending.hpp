// A batch on its way through a producer: its events become records, and what was reported of the
// records becomes the outcome of the batch.
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
    std::size_t left = 0;  // records that nothing has been heard of
    std::vector<Delivery> deliveries{};
    std::deque<Delivery> tombstones{};     // that follow events, which have pointers to them
    std::vector<SchemaOfEvent> schemas{};  // of the events; empty: payloads have no frame
    std::string complaint{};               // about the event that could not even be made a record
    void* line = nullptr;                  // of the sink, which has the producer
};

class BatchSender {
  public:
    explicit BatchSender(const KafkaOptions& options);

    // Gives the events to the producer. Those that it does not take are reported at once, and so are
    // those behind one of their key.
    void send(Producer& producer, Sending& sending);

    // `unreported` is the fate of records that nothing was heard of, and `why` the reason. With
    // `one_by_one` each record had a request of its own.
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

// The report that decides about an event: that of the first of its records that has not arrived.
const Delivery& decisive(const Delivery& delivery) noexcept;

// A broker refuses records that travelled together, and does not say which of them was to blame.
bool is_refused_together(const Delivery& delivery, bool one_by_one) noexcept;

bool any_confirmed(const Outcome& outcome) noexcept;

}  // namespace outbox
