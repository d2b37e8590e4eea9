#include "cloud/aws/json_protocol.hpp"

#include "net/json.hpp"

namespace outbox {

AwsFailure parse_json_failure(std::string_view body) {
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

std::optional<BatchAnswer> parse_ordered_answer(std::string_view body, const ResultNames& names,
                                                std::size_t entries) {
    const std::optional<Json::Value> root = parse_json(body);
    const Json::Value* list = root ? json_member(*root, names.list) : nullptr;
    // With fewer or more results, it is not known which entry each is about.
    if (list == nullptr || !list->isArray() || list->size() != entries)
        return std::nullopt;
    BatchAnswer answer(entries);
    for (Json::ArrayIndex i = 0; i < list->size(); i++) {
        const Json::Value& object = (*list)[i];
        EntryAnswer& entry = answer[i];
        std::string code = json_text(object, "ErrorCode");
        entry.message_id = json_text(object, names.id);
        if (!code.empty()) {
            entry.state = EntryAnswer::State::failed;
            entry.failure = {std::string(without_namespace(code)),
                             json_text(object, "ErrorMessage")};
        } else if (!entry.message_id.empty()) {
            entry.state = EntryAnswer::State::taken;
        }
    }
    return answer;
}

}  // namespace outbox
