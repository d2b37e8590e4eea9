// The query protocol of SNS: a request is a form, its answer is XML.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cloud/aws/batch_answer.hpp"

namespace outbox {

// Returns the result of each entry of a PublishBatch, or std::nullopt if the body is not an answer
// to this request.
std::optional<BatchAnswer> parse_sns_answer(std::string_view body, std::size_t entries);

// Makes the request GetTopicAttributes.
std::string sns_attributes_request(std::string_view topic_arn);

// Reads an error of any service that uses this protocol.
AwsFailure parse_query_failure(std::string_view body);

}  // namespace outbox
