// An event as a message of SQS or SNS. In both, a message is a text with at most ten attributes
// and, for FIFO, a group and a deduplication id.
//
//   attribute                       from
//   event_id, event_type            the event
//   aggregate_type, aggregate_id
//   version, schema_version         numbers; version only if the event has one
//   occurred_at
//   content_type                    only with a payload
//   headers                         all headers as a JSON object, if there are any
//   encoding                        base64: the text is encoded, because it has characters that
//                                   cannot be sent; none: there is no payload, and the text is "-"
//
// In the format "structured" the text is a CloudEvents document, the attribute `content-type` says
// so, and `headers` has the headers that are not attributes of the document.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/event.hpp"
#include "net/exchange.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct MessageStyle {
    EventFormat format = EventFormat::attributes;
    bool fifo = false;
    std::string source_prefix{};  // of CloudEvents
};

class AwsMessage {
  public:
    struct Attribute {
        std::string_view name;
        std::string_view type;  // String or Number
        std::string value;
    };

    AwsMessage() = default;
    AwsMessage(const AwsMessage&) = delete;  // members point into others
    AwsMessage& operator=(const AwsMessage&) = delete;

    // Turns this into the message of an event, which must outlive it. Reuses memory. May throw
    // std::bad_alloc.
    void assign(const Event& event, const MessageStyle& style);

    std::string_view body() const { return body_; }
    const Attribute* begin() const { return attributes_.data(); }
    const Attribute* end() const { return attributes_.data() + used_; }
    // Empty if not FIFO.
    const std::string& group_id() const { return group_id_; }
    const std::string& deduplication_id() const { return deduplication_id_; }

    // The size that counts towards the limits of both services.
    std::size_t size() const;
    // Returns the attribute with characters that the services do not accept, or an empty text.
    std::string_view illegal_attribute() const;

  private:
    void add_attributes(const Event& event);
    std::string& add(std::string_view name, std::string_view type = "String");
    template <class Which>
    void add_headers(const Event& event, Which which);

    std::array<Attribute, 10> attributes_;
    std::size_t used_ = 0;
    std::string_view body_;
    RequestContent structured_;  // `body_` may point into it
    std::string encoded_;
    std::string document_;  // scratch space; `body_` may point into it too
    std::string group_id_, deduplication_id_;
};

// Returns an upper bound of AwsMessage::size().
std::size_t message_size_bound(const Event& event, const MessageStyle& style) noexcept;

// True if the text has only characters that the services accept: UTF-8 without U+FFFE, U+FFFF, and
// control characters other than tab and line ends.
bool is_message_text(std::string_view text) noexcept;

}  // namespace outbox
