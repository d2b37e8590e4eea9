#include "sinks/aws/sns_protocol.hpp"

#include "core/text.hpp"
#include "sinks/aws/uri_encoding.hpp"
#include "sinks/aws/xml_element.hpp"

namespace outbox {

void begin_sns_batch(std::string& body, std::string_view topic_arn) {
    body += "Action=PublishBatch&Version=2010-03-31";
    append_form_field(body, "TopicArn", topic_arn);
}

void add_sns_entry(std::string& body, std::size_t index, const AwsMessage& message) {
    // Both kinds of lists count from 1.
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

std::optional<BatchAnswer> parse_sns_answer(std::string_view body, std::size_t entries) {
    const std::optional<XmlElement> root = parse_xml(body);
    if (!root || root->name != "PublishBatchResponse")
        return std::nullopt;
    const XmlElement& result = root->child("PublishBatchResult");
    BatchAnswer answer(entries);
    for (const XmlElement& member : result.child("Successful").children)
        if (EntryAnswer* entry = entry_of(answer, trim(member.child("Id").text))) {
            entry->state = EntryAnswer::State::taken;
            entry->message_id = trim(member.child("MessageId").text);
        }
    for (const XmlElement& member : result.child("Failed").children)
        if (EntryAnswer* entry = entry_of(answer, trim(member.child("Id").text))) {
            entry->state = EntryAnswer::State::failed;
            entry->failure = {std::string(trim(member.child("Code").text)),
                              member.child("Message").text,
                              trim(member.child("SenderFault").text) == "true"};
        }
    return answer;
}

std::string sns_attributes_request(std::string_view topic_arn) {
    std::string body = "Action=GetTopicAttributes&Version=2010-03-31";
    append_form_field(body, "TopicArn", topic_arn);
    return body;
}

AwsFailure parse_query_failure(std::string_view body) {
    const std::optional<XmlElement> root = parse_xml(body);
    if (!root)
        return {};
    const XmlElement& error = root->child("Error");
    return {std::string(trim(error.child("Code").text)), error.child("Message").text,
            trim(error.child("Type").text) == "Sender"};
}

}  // namespace outbox
