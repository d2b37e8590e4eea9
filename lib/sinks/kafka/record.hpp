// An event as a record of Kafka: its key, its value and its headers.
//
//   format      value                    headers
//   attributes  the payload              event_id, event_type, aggregate_type, aggregate_id, version,
//                                        schema_version, occurred_at, content_type, and the event's
//   binary      the payload              ce_<CloudEvents attribute>, content-type, other headers
//   structured  a CloudEvents document   content-type, headers that are not in the document
//
// An event without payload is a record without value, which is a tombstone. In the format
// structured it has a document without data. `traceparent` and `tracestate` keep their names in
// every format.
//
// RecordForm has options for what Kafka Connect's converters can do as well.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/event.hpp"
#include "sinks/cloudevents.hpp"
#include "sinks/kafka/record_form.hpp"

namespace outbox {

class RecordEncoder {
  public:
    RecordEncoder(RecordForm form, std::string_view database);

    // Returns the key of the event's record, or an empty text. It is valid until the next call.
    std::string_view key(const Event& event);

    // Calls header(name, value) for each header. Returns the value, or std::nullopt if the record
    // has none. It is valid until the next call.
    std::optional<std::string_view> encode(const Event& event, const TakePart& header);

    // Returns about how much the event adds to a request.
    static std::size_t size_of(const Event& event) noexcept;

  private:
    std::string_view payload_of(const Event& event);

    RecordForm form_;
    std::string source_prefix_;
    RequestContent document_;  // of a structured event
    std::string key_;          // as JSON
    std::string payload_;      // if it is not sent unchanged
};

}  // namespace outbox
