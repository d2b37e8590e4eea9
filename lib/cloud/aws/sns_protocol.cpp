#include "cloud/aws/sns_protocol.hpp"

#include "cloud/aws/form_field.hpp"
#include "cloud/aws/xml_element.hpp"
#include "core/text.hpp"

namespace outbox {

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
