#include "rabbitmq/delivery.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "message/decode.hpp"
#include "text.hpp"

namespace inbox::rabbitmq {

using outbox::text_of;

// A later time would not fit into Time, and a message cannot be from the future.
static constexpr std::uint64_t latest_second = 10'000'000'000;

static std::optional<std::int64_t> integer_of(const amqp_field_value_t& value) {
    switch (value.kind) {
        case AMQP_FIELD_KIND_I8:
            return value.value.i8;
        case AMQP_FIELD_KIND_U8:
            return value.value.u8;
        case AMQP_FIELD_KIND_I16:
            return value.value.i16;
        case AMQP_FIELD_KIND_U16:
            return value.value.u16;
        case AMQP_FIELD_KIND_I32:
            return value.value.i32;
        case AMQP_FIELD_KIND_U32:
            return value.value.u32;
        case AMQP_FIELD_KIND_I64:
            return value.value.i64;
        case AMQP_FIELD_KIND_U64:
        case AMQP_FIELD_KIND_TIMESTAMP:
            if (value.value.u64 <= INT64_MAX)
                return static_cast<std::int64_t>(value.value.u64);
            return std::nullopt;
        default:
            return std::nullopt;
    }
}

// Headers with other kinds of values, such as tables, are left out.
static std::optional<std::string> header_text(const amqp_field_value_t& value) {
    if (value.kind == AMQP_FIELD_KIND_UTF8 || value.kind == AMQP_FIELD_KIND_BYTES)
        return std::string(text_of(value.value.bytes));
    if (value.kind == AMQP_FIELD_KIND_BOOLEAN)
        return value.value.boolean != 0 ? "true" : "false";
    if (const std::optional<std::int64_t> number = integer_of(value))
        return std::to_string(*number);
    return std::nullopt;
}

// The AMQP binding of CloudEvents has a colon or an underscore where the HTTP binding has a hyphen.
static std::string attribute_name(std::string_view header) {
    for (const std::string_view prefix : {"cloudEvents:", "cloudEvents_"})
        if (header.starts_with(prefix))
            return "ce-" + std::string(header.substr(prefix.size()));
    return std::string(header);
}

static void take_header(Envelope& envelope, std::string_view name,
                        const amqp_field_value_t& value) {
    const std::optional<std::int64_t> number = integer_of(value);
    if (name == "x-stream-offset") {
        if (number < INT64_MAX)  // there is one behind it
            envelope.offset = number;
    } else if (name == "x-delivery-count") {
        envelope.failed_deliveries = number.value_or(0);
    } else if (name == "x-acquired-count") {
        return;  // different each time
    } else if (std::optional<std::string> text = header_text(value)) {
        if (name == "timestamp_in_ms" && number && *number >= 0 &&
            static_cast<std::uint64_t>(*number) < latest_second * 1000)
            envelope.stamp = Time(std::chrono::milliseconds(*number));
        envelope.attributes.try_emplace(attribute_name(name), std::move(*text));
    }
}

void take_properties(Envelope& envelope, const amqp_basic_properties_t& properties) {
    const auto has = [&](amqp_flags_t flag) { return (properties._flags & flag) != 0; };
    if (has(AMQP_BASIC_TIMESTAMP_FLAG) && properties.timestamp < latest_second)
        envelope.stamp = Time(std::chrono::seconds(properties.timestamp));
    if (has(AMQP_BASIC_HEADERS_FLAG))
        for (int i = 0; i < properties.headers.num_entries; i++)
            take_header(envelope, text_of(properties.headers.entries[i].key),
                        properties.headers.entries[i].value);
    if (has(AMQP_BASIC_CONTENT_TYPE_FLAG))
        envelope.attributes["content-type"] = text_of(properties.content_type);
    if (has(AMQP_BASIC_MESSAGE_ID_FLAG))
        envelope.message_id = text_of(properties.message_id);
    if (has(AMQP_BASIC_APP_ID_FLAG))
        envelope.app_id = text_of(properties.app_id);
    if (has(AMQP_BASIC_TYPE_FLAG))
        envelope.type = text_of(properties.type);
}

// A text that is the same when the broker sends the message again, also by way of a dead-letter
// exchange, which adds headers with x-.
static std::string content_of(const Message& message) {
    const Envelope& envelope = message.envelope;
    std::map<std::string, std::string> attributes = envelope.attributes;
    std::erase_if(attributes, [](const auto& one) { return one.first.starts_with("x-"); });
    attributes.try_emplace("type", envelope.type);
    if (envelope.stamp)
        attributes.try_emplace("timestamp",
                               std::to_string(envelope.stamp->time_since_epoch().count()));
    return digest_of(attributes, message.body);
}

// Two applications may give the same id. Numbers without an application are given again by another
// sender, and by one that starts again. In a stream that was made again offsets begin again, so that
// an offset alone says nothing.
static std::string name_of(const Message& message, const std::string& id,
                           bool counted_ids_are_unique) {
    const Envelope& envelope = message.envelope;
    if (!envelope.app_id.empty() && !envelope.message_id.empty())
        return envelope.message_id + '@' + envelope.app_id;
    if (is_counted(envelope.message_id) && !counted_ids_are_unique)
        return envelope.message_id + '#' + content_of(message);
    if (!envelope.message_id.empty())
        return envelope.message_id;
    return envelope.offset ? id + '#' + digest_of(envelope.attributes, message.body) : id;
}

Delivery delivery_from(Message message, const std::string& source, const std::string& unnamed,
                       Time now, bool counted_ids_are_unique) {
    Envelope& envelope = message.envelope;
    const std::string id = envelope.offset                ? std::to_string(*envelope.offset)
                           : !envelope.message_id.empty() ? envelope.message_id
                                                          : unnamed;
    std::string name = name_of(message, id, counted_ids_are_unique);
    std::string key;
    if (const auto found = envelope.attributes.extract("ordering_key"))
        key = found.mapped();
    // A sender that does not know our headers sets the event type here.
    const bool has_type = envelope.attributes.contains("event_type") ||
                          envelope.attributes.contains("ce-type") || envelope.type.empty();
    Delivery delivery{.event = {},
                      .source = source,
                      .message_id = id,
                      .published_at = std::min(envelope.stamp.value_or(now), now),
                      .handle = {},
                      .size = envelope.size + message.body.size()};
    delivery.event = decode_message(envelope.attributes, std::move(message.body),
                                    {.source = source,
                                     .message_id = std::move(name),
                                     .topic = envelope.routing_key,
                                     .ordering_key = key,
                                     .published_at = delivery.published_at});
    if (!has_type && delivery.event.type.empty())
        delivery.event.type = clean_utf8(envelope.type, "\xef\xbf\xbd");  // U+FFFD
    return delivery;
}

}  // namespace inbox::rabbitmq
