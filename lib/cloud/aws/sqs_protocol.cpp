#include "cloud/aws/sqs_protocol.hpp"

#include "core/text.hpp"
#include "net/json.hpp"

namespace outbox {

// Calls each(entry, object) for each object of an array that names an entry of the request.
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
    append_json_member(body, "QueueName", queue);
    body += '}';
    return body;
}

std::string parse_sqs_queue_url(std::string_view body) {
    const std::optional<Json::Value> root = parse_json(body);
    return root ? json_text(*root, "QueueUrl") : "";
}

std::string sqs_attributes_request(std::string_view queue_url) {
    std::string body = "{";
    append_json_member(body, "QueueUrl", queue_url);
    body += R"(,"AttributeNames":["QueueArn"]})";
    return body;
}

}  // namespace outbox
