// An event as a message of SQS or SNS, which have the same idea of one: a text, at most ten
// attributes, and for FIFO a group and an id to tell duplicates by.
//
//   attribute                       from
//   event_id, event_type            the event
//   aggregate_type, aggregate_id
//   version, schema_version         numbers; version where the event has one
//   occurred_at
//   content_type                    where there is a payload
//   headers                         all of them as a JSON object, where there are any
//   encoding                        base64: the text is, because what is in it is none that can be
//                                   sent; none: there is no payload, and "-" stands for it
//
// In structured format the text is a CloudEvents document, `content-type` says so, and `headers`
// has those headers that are no attributes of it.
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
    AwsMessage(const AwsMessage&) = delete;  // parts lie in others
    AwsMessage& operator=(const AwsMessage&) = delete;

    // Becomes the message of an event, which must outlive it. Used again, it allocates little. May
    // throw std::bad_alloc.
    void assign(const Event& event, const MessageStyle& style);

    std::string_view body() const { return body_; }
    const Attribute* begin() const { return attributes_.data(); }
    const Attribute* end() const { return attributes_.data() + used_; }
    // For FIFO; else empty.
    const std::string& group_id() const { return group_id_; }
    const std::string& deduplication_id() const { return deduplication_id_; }

    // What counts towards the limits of both services.
    std::size_t size() const;
    // Which attribute holds what is no text for them; empty: none.
    std::string_view illegal_attribute() const;

  private:
    void add_attributes(const Event& event);
    std::string& add(std::string_view name, std::string_view type = "String");
    template <class Which>
    void add_headers(const Event& event, Which which);

    std::array<Attribute, 10> attributes_;
    std::size_t used_ = 0;
    std::string_view body_;
    RequestContent structured_;  // what `body_` may lie in, as in
    std::string encoded_;
    std::string document_;  // scratch
    std::string group_id_, deduplication_id_;
};

// At least what AwsMessage::size() will be.
std::size_t message_size_bound(const Event& event, const MessageStyle& style) noexcept;

// Does the text consist of what the services take: UTF-8 without U+FFFE, U+FFFF, and control
// characters but for tab and line ends?
bool is_message_text(std::string_view text) noexcept;

}  // namespace outbox
