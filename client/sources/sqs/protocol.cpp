#include "sqs/protocol.hpp"

#include "core/base64.hpp"
#include "core/text.hpp"
#include "message/decode.hpp"
#include "net/json.hpp"

namespace inbox::sqs {

using outbox::append_integer;
using outbox::append_json_string;
using outbox::json_member;
using outbox::json_text;

static void append_member(std::string& out, std::string_view name, std::string_view value) {
    out += out.back() == '{' ? "\"" : ",\"";
    out += name;
    out += "\":";
    append_json_string(out, value);
}

static void append_member(std::string& out, std::string_view name, std::int64_t value) {
    out += out.back() == '{' ? "\"" : ",\"";
    out += name;
    out += "\":";
    append_integer(out, value);
}

std::string receive_request(const ReceiveRequest& request) {
    std::string body = "{";
    append_member(body, "QueueUrl", request.queue_url);
    append_member(body, "MaxNumberOfMessages", static_cast<std::int64_t>(max_per_request));
    append_member(body, "WaitTimeSeconds", request.wait.count());
    append_member(body, "VisibilityTimeout", request.visibility.count());
    if (!request.attempt_id.empty())
        append_member(body, "ReceiveRequestAttemptId", request.attempt_id);
    // Asks under the old name too: servers for tests may know only one of the two.
    return body + R"(,"MessageSystemAttributeNames":["SentTimestamp","MessageGroupId"],)"
                  R"("AttributeNames":["SentTimestamp","MessageGroupId"],)"
                  R"("MessageAttributeNames":["All"]})";
}

static std::string attribute_value(const Json::Value& attribute) {
    const std::string text = json_text(attribute, "StringValue");
    const std::string binary = json_text(attribute, "BinaryValue");
    return binary.empty() ? text : outbox::base64_decoded(binary).value_or(binary);
}

static Message message_from(const Json::Value& object) {
    Message message{.id = json_text(object, "MessageId"),
                    .receipt_handle = json_text(object, "ReceiptHandle"),
                    .body = json_text(object, "Body")};
    if (const Json::Value* attributes = json_member(object, "MessageAttributes");
        attributes != nullptr && attributes->isObject())
        for (auto at = attributes->begin(); at != attributes->end(); ++at)
            message.attributes[at.name()] = attribute_value(*at);
    if (const Json::Value* system = json_member(object, "Attributes")) {
        message.group = json_text(*system, "MessageGroupId");
        if (const auto sent = outbox::parse_integer(json_text(*system, "SentTimestamp")))
            message.sent_at = time_of(std::chrono::milliseconds(*sent)).value_or(Time());
    }
    return message;
}

std::optional<std::vector<Message>> parse_messages(std::string_view body) {
    const std::optional<Json::Value> root = outbox::parse_json(body);
    if (!root || !root->isObject())
        return std::nullopt;
    std::vector<Message> messages;
    const Json::Value* list = json_member(*root, "Messages");
    if (list == nullptr || list->isNull())
        return messages;
    if (!list->isArray() || list->size() > max_per_request)
        return std::nullopt;
    for (const Json::Value& object : *list) {
        messages.push_back(message_from(object));
        if (messages.back().receipt_handle.empty())
            return std::nullopt;
    }
    return messages;
}

static std::string batch_request(std::string_view queue_url, std::span<const std::string> handles,
                                 std::optional<std::chrono::seconds> visibility) {
    std::string body = "{";
    append_member(body, "QueueUrl", queue_url);
    body += ",\"Entries\":[";
    for (std::size_t i = 0; i < handles.size(); i++) {
        body += i > 0 ? ",{" : "{";
        append_member(body, "Id", std::to_string(i));
        append_member(body, "ReceiptHandle", handles[i]);
        if (visibility)
            append_member(body, "VisibilityTimeout", visibility->count());
        body += '}';
    }
    return body + "]}";
}

std::string delete_request(std::string_view queue_url, std::span<const std::string> handles) {
    return batch_request(queue_url, handles, std::nullopt);
}

std::string visibility_request(std::string_view queue_url, std::span<const std::string> handles,
                               std::chrono::seconds visibility) {
    return batch_request(queue_url, handles, visibility);
}

std::string queue_url_request(std::string_view queue, std::string_view account) {
    std::string body = "{";
    append_member(body, "QueueName", queue);
    if (!account.empty())
        append_member(body, "QueueOwnerAWSAccountId", account);
    return body + '}';
}

}  // namespace inbox::sqs
