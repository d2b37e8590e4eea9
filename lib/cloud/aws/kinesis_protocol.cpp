#include "cloud/aws/kinesis_protocol.hpp"

#include "core/text.hpp"
#include "net/json.hpp"

namespace outbox {

void append_stream_name(std::string& body, std::string_view address) {
    append_json_member(body, address.starts_with("arn:") ? "StreamARN" : "StreamName", address);
}

std::string kinesis_summary_request(std::string_view address) {
    std::string body = "{";
    append_stream_name(body, address);
    body += '}';
    return body;
}

std::optional<StreamSummary> parse_kinesis_summary(std::string_view body) {
    const std::optional<Json::Value> root = parse_json(body);
    const Json::Value* const summary =
        root ? json_member(*root, "StreamDescriptionSummary") : nullptr;
    if (summary == nullptr || !summary->isObject())
        return std::nullopt;
    StreamSummary found{.status = json_text(*summary, "StreamStatus")};
    const Json::Value* const most = json_member(*summary, "MaxRecordSizeInKiB");
    if (most != nullptr && most->isInt())
        found.max_record_kib = most->asInt();
    return found;
}

}  // namespace outbox
