#include "sinks/aws/sns_batch.hpp"

#include "cloud/aws/form_field.hpp"

namespace outbox {

void begin_sns_batch(std::string& body, std::string_view topic_arn) {
    body += "Action=PublishBatch&Version=2010-03-31";
    append_form_field(body, "TopicArn", topic_arn);
}

void add_sns_entry(std::string& body, std::size_t index, const AwsMessage& message) {
    // Both lists count from 1.
    const std::string prefix =
        "PublishBatchRequestEntries.member." + std::to_string(index + 1) + '.';
    append_form_field(body, prefix + "Id", std::to_string(index));
    append_form_field(body, prefix + "Message", message.body());
    if (!message.group_id().empty()) {
        append_form_field(body, prefix + "MessageGroupId", message.group_id());
        append_form_field(body, prefix + "MessageDeduplicationId", message.deduplication_id());
    }
    int number = 0;
    for (const AwsMessage::Attribute& attribute : message) {
        const std::string entry =
            prefix + "MessageAttributes.entry." + std::to_string(++number) + '.';
        append_form_field(body, entry + "Name", attribute.name);
        append_form_field(body, entry + "Value.DataType", attribute.type);
        append_form_field(body, entry + "Value.StringValue", attribute.value);
    }
}

}  // namespace outbox
