#include "sinks/mqtt/message.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "sinks/cloudevents.hpp"
#include "sinks/mqtt/packets.hpp"
#include "sinks/plain_attributes.hpp"

namespace outbox {

static constexpr std::string_view ordering_key = "ordering_key";
static constexpr std::string_view document_type = "application/cloudevents+json; charset=UTF-8";

MqttMessage::MqttMessage(const MqttOptions& options)
    : options_(options), source_prefix_(source_prefix(options.source)) {}

std::optional<std::string> MqttMessage::assign(const Event& event) {
    topic_.clear();
    options_.topic.append_to(topic_, event, options_.source);
    if (topic_.empty() || !is_mqtt_text(topic_) || topic_.find_first_of("+#") != std::string::npos)
        return "\"" + topic_ +
               "\" cannot be a topic of MQTT: it must not be empty, longer than 65,535 bytes, or "
               "contain +, # or control characters";
    properties_.clear();
    illegal_ = nullptr;
    payload_ = event.payload;
    if (options_.message_expiry > 0)
        append_message_expiry(properties_, options_.message_expiry);
    switch (options_.format) {
        case EventFormat::binary:
            add_cloud_event(event);
            break;
        case EventFormat::structured:
            add_document(event);
            break;
        default:
            add_attributes(event);
            break;
    }
    if (illegal_ != nullptr)
        return "attribute \"" + printable(illegal_name_) + "\" " + illegal_ + " of MQTT";
    return std::nullopt;
}

// A text that is cut or altered could be that of another event.
void MqttMessage::check(std::string_view name, std::string_view value) {
    if (is_mqtt_text(name) && is_mqtt_text(value))
        return;
    illegal_name_ = name;
    illegal_ = std::max(name.size(), value.size()) > max_mqtt_text
                   ? "is longer than 65,535 bytes, the limit"
                   : "has control characters, or others that are not allowed in texts";
}

void MqttMessage::add(std::string_view name, std::string_view value) {
    check(name, value);
    append_user_property(properties_, name, value);
}

void MqttMessage::add_content_type(std::string_view type) {
    check("content_type", type);
    append_content_type(properties_, type);
}

void MqttMessage::add_attributes(const Event& event) {
    if (event.has_payload)
        add_content_type(event.content_type);
    if (!event.ordering_key.empty())
        add(ordering_key, event.ordering_key);
    for_each_plain_attribute(event, [&](std::string_view name, std::string_view value) {
        // The type of the payload has a property of its own.
        if (name != plain_attribute_names[static_cast<int>(PlainAttribute::content_type)] &&
            name != ordering_key)
            add(name, value);
    });
}

// Binary mode of the MQTT binding of CloudEvents 1.0: attributes are user properties.
void MqttMessage::add_cloud_event(const Event& event) {
    if (event.has_payload)
        add_content_type(event.content_type);
    const auto property = [&](std::string_view name, std::string_view value) { add(name, value); };
    take_apart(event, source_prefix_, property, property);
}

void MqttMessage::add_document(const Event& event) {
    append_content_type(properties_, document_type);
    for (const Header& header : event.headers)
        if (header.kind != Header::Kind::null &&
            (!is_attribute_name(header.name) || is_trace_header(header.name)))
            add(header.name, header.value);
    encode_structured(event, source_prefix_, document_);
    payload_ = document_.body;
}

std::size_t MqttMessage::size_of(const Event& event) noexcept {
    constexpr std::size_t names = 300;  // of properties, and of what every message has
    std::size_t size = names + event.payload.size() + 2 * event.ordering_key.size() +
                       event.topic.size() + event.aggregate_type.size() +
                       event.aggregate_id.size() + event.event_type.size() +
                       event.content_type.size();
    for (const Header& header : event.headers)
        size += header.name.size() + header.value.size() + 8;
    return size;
}

}  // namespace outbox
