#include "sqs/delivery.hpp"

#include <optional>
#include <utility>

#include "core/base64.hpp"
#include "message/decode.hpp"
#include "net/json.hpp"

namespace inbox::sqs {

using outbox::json_member;
using outbox::json_text;

// Removes the envelope that SNS adds unless the queue subscribed with RawMessageDelivery. Returns
// the name of the topic, or an empty name without a change if there is no envelope.
static std::string unwrap(Message& message) {
    if (!message.attributes.empty() || !message.body.starts_with('{'))
        return "";
    const std::optional<Json::Value> envelope = outbox::parse_json(message.body);
    if (!envelope || json_text(*envelope, "Type") != "Notification")
        return "";
    const std::string topic = json_text(*envelope, "TopicArn");
    const Json::Value* text = json_member(*envelope, "Message");
    if (topic.empty() || text == nullptr || !text->isString())
        return "";
    if (const Json::Value* attributes = json_member(*envelope, "MessageAttributes");
        attributes != nullptr && attributes->isObject())
        for (auto at = attributes->begin(); at != attributes->end(); ++at) {
            const std::string value = json_text(*at, "Value");
            message.attributes[at.name()] = json_text(*at, "Type") == "Binary"
                                                ? outbox::base64_decoded(value).value_or(value)
                                                : value;
        }
    message.body = text->asString();
    return topic.substr(topic.rfind(':') + 1);
}

// Undoes the `encoding` of the sinks (docs/destinations/sqs.md). A body that cannot be decoded
// stays as it is.
static void decode_body(Message& message) {
    const auto found = message.attributes.find("encoding");
    if (found == message.attributes.end())
        return;
    if (found->second == "none") {
        message.body.clear();
    } else if (found->second == "base64") {
        std::optional<std::string> bytes = outbox::base64_decoded(message.body);
        if (!bytes)
            return;
        message.body = std::move(*bytes);
    } else {
        return;
    }
    message.attributes.erase(found);
}

static std::size_t size_of(const Message& message) {
    std::size_t size = message.body.size();
    for (const auto& [name, value] : message.attributes)
        size += name.size() + value.size();
    return size;
}

Delivery delivery_from(Message message, const std::string& source, const std::string& queue,
                       bool fifo) {
    Delivery delivery{.event = {},
                      .source = source,
                      .message_id = message.id,
                      .published_at = message.sent_at,
                      .handle = message.receipt_handle,
                      .size = size_of(message)};
    const std::string topic = unwrap(message);
    decode_body(message);
    delivery.event = decode_message(message.attributes, std::move(message.body),
                                    {.source = source,
                                     .message_id = message.id,
                                     .topic = topic.empty() ? queue : topic,
                                     .ordering_key = fifo ? message.group : "",
                                     .published_at = message.sent_at});
    take_headers(delivery.event);  // there is room for ten attributes only
    // Events without an ordering key have their id as the group: see docs/destinations/sqs.md.
    if (delivery.event.ordering_key == delivery.event.id)
        delivery.event.ordering_key.clear();
    return delivery;
}

}  // namespace inbox::sqs
