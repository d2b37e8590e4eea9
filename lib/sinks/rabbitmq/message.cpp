#include "sinks/rabbitmq/message.hpp"

#include <algorithm>
#include <array>

#include "core/text.hpp"
#include "sinks/plain_attributes.hpp"

namespace outbox {

static constexpr std::string_view structured_type = "application/cloudevents+json; charset=UTF-8";
static constexpr std::uint8_t persistent = 2;

// RabbitMQ reads more routing keys from these headers, and refuses them unless they are lists.
static bool is_routing_header(std::string_view name) noexcept {
    return name == "CC" || name == "BCC";
}

MessageEncoder::MessageEncoder(EventFormat format, std::string_view database,
                               std::size_t max_message_size)
    : format_(format),
      source_prefix_(source_prefix(database)),
      max_message_size_(max_message_size) {}

void MessageEncoder::add(std::string_view name, std::string_view value) {
    amqp_table_entry_t entry{};
    entry.key.len = name.size();
    entry.value.kind = AMQP_FIELD_KIND_UTF8;
    entry.value.value.bytes.len = value.size();
    headers_.push_back(entry);
    texts_.append(name).append(value);
}

// Returns the body.
std::string_view MessageEncoder::add_headers(const Event& event) {
    headers_.clear();
    texts_.clear();
    const auto header = [&](std::string_view name, std::string_view value) { add(name, value); };
    switch (format_) {
        case EventFormat::binary: {
            std::string prefixed;
            take_apart(
                event, source_prefix_,
                [&](std::string_view name, std::string_view value) {
                    prefixed = "cloudEvents_";
                    prefixed += name;
                    add(prefixed, value);
                    if (is_trace_header(name))
                        add(name, value);
                },
                header);
            break;
        }
        case EventFormat::structured:
            for (const Header& own : event.headers)
                if (own.kind != Header::Kind::null &&
                    (!is_attribute_name(own.name) || is_trace_header(own.name)) &&
                    own.name != "ordering_key")
                    add(own.name, own.value);
            encode_structured(event, source_prefix_, document_);
            break;
        default:
            for_each_plain_attribute(event, [&](std::string_view name, std::string_view value) {
                if (name != "ordering_key")
                    add(name, value);
            });
            break;
    }
    if (format_ != EventFormat::binary && !event.ordering_key.empty())
        add("ordering_key", event.ordering_key);
    // From here on the texts do not move.
    const char* at = texts_.data();
    for (amqp_table_entry_t& entry : headers_)
        for (amqp_bytes_t* text : {&entry.key, &entry.value.value.bytes}) {
            text->bytes = const_cast<char*>(at);
            at += text->len;
        }
    return format_ == EventFormat::structured ? std::string_view(document_.body) : event.payload;
}

std::optional<std::string> MessageEncoder::append(std::string& out, std::uint16_t channel,
                                                  std::size_t max_frame, std::string_view exchange,
                                                  std::string_view routing_key,
                                                  const Event& event) {
    const std::string_view body = add_headers(event);
    body_size_ = body.size();
    if (body.size() > max_message_size_)
        return "the message has " + std::to_string(body.size()) +
               " bytes, and max_message_size is " + std::to_string(max_message_size_);
    for (const amqp_table_entry_t& header : headers_) {
        const std::string_view name = text_of(header.key);
        if (name.size() > max_short_string)
            return "the name of a header has more than 255 bytes: " + printable(name, 60) + "...";
        if (is_routing_header(name))
            return "RabbitMQ would take routing keys from a header \"" + std::string(name) + '"';
    }
    std::array<char, 36> id;
    {
        std::string text;
        append_uuid(text, event.event_id);
        std::copy_n(text.begin(), id.size(), id.begin());
    }
    amqp_basic_properties_t properties{};
    properties._flags =
        AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG;
    properties.headers = {static_cast<int>(headers_.size()), headers_.data()};
    properties.delivery_mode = persistent;
    properties.message_id = {id.size(), id.data()};
    const std::string_view type = format_ == EventFormat::structured ? structured_type
                                  : event.has_payload                ? event.content_type
                                                                     : std::string_view();
    if (!type.empty() && type.size() <= max_short_string) {
        properties._flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
        properties.content_type = amqp_bytes(type);
    }
    if (event.event_type.size() <= max_short_string) {
        properties._flags |= AMQP_BASIC_TYPE_FLAG;
        properties.type = amqp_bytes(event.event_type);
    }
    if (event.occurred_at >= 0) {
        properties._flags |= AMQP_BASIC_TIMESTAMP_FLAG;
        properties.timestamp = static_cast<std::uint64_t>(event.occurred_at / seconds(1));
    }
    const std::size_t before = out.size();
    amqp_basic_publish_t publish{.ticket = 0,
                                 .exchange = amqp_bytes(exchange),
                                 .routing_key = amqp_bytes(routing_key),
                                 .mandatory = 1,
                                 .immediate = 0};
    append_method(out, channel, AMQP_BASIC_PUBLISH_METHOD, &publish);
    if (!append_content(out, channel, max_frame, properties, body)) {
        out.resize(before);
        return "the headers are larger than a frame of AMQP, which has " +
               std::to_string(max_frame) + " bytes";
    }
    return std::nullopt;
}

std::size_t MessageEncoder::size_of(const Event& event) noexcept {
    constexpr std::size_t names = 350;  // of headers, and of what every message has
    std::size_t size = names + event.payload.size() + event.ordering_key.size() +
                       2 * event.topic.size() + event.aggregate_type.size() +
                       event.aggregate_id.size() + 2 * event.event_type.size() +
                       2 * event.content_type.size();
    for (const Header& header : event.headers)
        size += header.name.size() + header.value.size() + 6;
    return size;
}

}  // namespace outbox
