// SNS: the query protocol. A request is a form, its answer XML.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cloud/aws/batch_answer.hpp"

namespace outbox {

// Returns the result of each entry of a PublishBatch; std::nullopt: not an answer to this request.
std::optional<BatchAnswer> parse_sns_answer(std::string_view body, std::size_t entries);

// GetTopicAttributes.
std::string sns_attributes_request(std::string_view topic_arn);

// Of any service that speaks this protocol.
AwsFailure parse_query_failure(std::string_view body);

}  // namespace outbox
