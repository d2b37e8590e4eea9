// An event as a message of AMQP: its properties, its headers and its body.
//
//   format      body                    headers
//   attributes  the payload             event_id, event_type, aggregate_type, aggregate_id,
//                                       version, schema_version, occurred_at, content_type,
//                                       ordering_key, and those of the event
//   binary      the payload             cloudEvents_<attribute>, and those of the event
//   structured  a CloudEvents document  ordering_key, and those that are not in the document
//
// Properties in every format: delivery_mode 2 (persistent), content_type, message_id (the event
// id), timestamp (occurred_at, in seconds) and type (the event type). `traceparent` and
// `tracestate` keep their names in every format.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/event.hpp"
#include "net/amqp/frames.hpp"
#include "sinks/cloudevents.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

class MessageEncoder {
  public:
    MessageEncoder(EventFormat format, std::string_view database, std::size_t max_message_size);

    // Appends the message with its method basic.publish. If the event cannot be a message, it
    // appends nothing and returns why.
    std::optional<std::string> append(std::string& out, std::uint16_t channel,
                                      std::size_t max_frame, std::string_view exchange,
                                      std::string_view routing_key, const Event& event);

    // Returns the size of the body of the last message.
    std::size_t body_size() const noexcept { return body_size_; }

    // Returns about how much the event adds to what is sent.
    static std::size_t size_of(const Event& event) noexcept;

  private:
    std::string_view add_headers(const Event& event);
    void add(std::string_view name, std::string_view value);

    EventFormat format_;
    std::string source_prefix_;
    std::size_t max_message_size_;
    std::size_t body_size_ = 0;
    RequestContent document_;  // of a structured event
    std::vector<amqp_table_entry_t> headers_;
    std::string texts_;  // of headers; entries have offsets until all texts are there
};

}  // namespace outbox
