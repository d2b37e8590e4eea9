#include "sinks/aws/sqs_protocol.hpp"

#include "core/text.hpp"
#include "sinks/encoding/json.hpp"

namespace outbox {

static void append_member(std::string& out, std::string_view name, std::string_view value) {
    append_json_string(out, name);
    out += ':';
    append_json_string(out, value);
}

void begin_sqs_batch(std::string& body, std::string_view queue_url) {
    body += '{';
    append_member(body, "QueueUrl", queue_url);
    body += R"(,"Entries":[)";
}

void add_sqs_entry(std::string& body, std::size_t index, const AwsMessage& message) {
    body += body.back() == '[' ? R"({"Id":")" : R"(,{"Id":")";
    append_integer(body, static_cast<std::int64_t>(index));
    body += R"(",)";
    append_member(body, "MessageBody", message.body());
    if (!message.group_id().empty()) {
        body += ',';
        append_member(body, "MessageGroupId", message.group_id());
        body += ',';
        append_member(body, "MessageDeduplicationId", message.deduplication_id());
    }
    body += R"(,"MessageAttributes":{)";
    for (const AwsMessage::Attribute& attribute : message) {
        if (body.back() != '{')
            body += ',';
        append_json_string(body, attribute.name);
        body += ":{";
        append_member(body, "DataType", attribute.type);
        body += ',';
        append_member(body, "StringValue", attribute.value);
        body += '}';
    }
    body += "}}";
}

void end_sqs_batch(std::string& body) {
    body += "]}";
}

// Calls each(entry, object) for the objects in an array that name an entry of the request.
template <class Each>
static void for_each_entry(BatchAnswer& answer, const Json::Value* list, Each each) {
    if (list == nullptr || !list->isArray())
        return;
    for (const Json::Value& object : *list)
        if (EntryAnswer* entry = entry_of(answer, json_text(object, "Id")))
            each(*entry, object);
}

std::optional<BatchAnswer> parse_sqs_answer(std::string_view body, std::size_t entries) {
    const std::optional<Json::Value> root = parse_json(body);
    if (!root || !root->isObject())
        return std::nullopt;
    BatchAnswer answer(entries);
    for_each_entry(answer, json_member(*root, "Successful"),
                   [](EntryAnswer& entry, const Json::Value& object) {
                       entry.state = EntryAnswer::State::taken;
                       entry.message_id = json_text(object, "MessageId");
                   });
    for_each_entry(answer, json_member(*root, "Failed"),
                   [](EntryAnswer& entry, const Json::Value& object) {
                       const Json::Value* fault = json_member(object, "SenderFault");
                       entry.state = EntryAnswer::State::failed;
                       entry.failure = {std::string(without_namespace(json_text(object, "Code"))),
                                        json_text(object, "Message"),
                                        fault != nullptr && fault->isBool() && fault->asBool()};
                   });
    return answer;
}

std::string sqs_queue_url_request(std::string_view queue) {
    std::string body = "{";
    append_member(body, "QueueName", queue);
    body += '}';
    return body;
}

std::string parse_sqs_queue_url(std::string_view body) {
    const std::optional<Json::Value> root = parse_json(body);
    return root ? json_text(*root, "QueueUrl") : "";
}

std::string sqs_attributes_request(std::string_view queue_url) {
    std::string body = "{";
    append_member(body, "QueueUrl", queue_url);
    body += R"(,"AttributeNames":["QueueArn"]})";
    return body;
}

AwsFailure parse_sqs_failure(std::string_view body) {
    AwsFailure failure;
    const std::optional<Json::Value> root = parse_json(body);
    if (!root)
        return failure;
    failure.code = without_namespace(json_text(*root, "__type"));
    failure.message = json_text(*root, "message");
    if (failure.message.empty())
        failure.message = json_text(*root, "Message");
    return failure;
}

}  // namespace outbox
