#include "sinks/aws/sqs_batch.hpp"

#include "core/text.hpp"

namespace outbox {

void begin_sqs_batch(std::string& body, std::string_view queue_url) {
    body += '{';
    append_json_member(body, "QueueUrl", queue_url);
    body += R"(,"Entries":[)";
}

void add_sqs_entry(std::string& body, std::size_t index, const AwsMessage& message) {
    body += body.back() == '[' ? R"({"Id":")" : R"(,{"Id":")";
    append_integer(body, static_cast<std::int64_t>(index));
    body += R"(",)";
    append_json_member(body, "MessageBody", message.body());
    if (!message.group_id().empty()) {
        body += ',';
        append_json_member(body, "MessageGroupId", message.group_id());
        body += ',';
        append_json_member(body, "MessageDeduplicationId", message.deduplication_id());
    }
    body += R"(,"MessageAttributes":{)";
    for (const AwsMessage::Attribute& attribute : message) {
        if (body.back() != '{')
            body += ',';
        append_json_string(body, attribute.name);
        body += ":{";
        append_json_member(body, "DataType", attribute.type);
        body += ',';
        append_json_member(body, "StringValue", attribute.value);
        body += '}';
    }
    body += "}}";
}

void end_sqs_batch(std::string& body) {
    body += "]}";
}

}  // namespace outbox
