// SQS: AWS JSON 1.0. A request is an object, and so is its answer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cloud/aws/batch_answer.hpp"

namespace outbox {

// Returns the result of each entry of a batch; std::nullopt: not an answer to this request.
std::optional<BatchAnswer> parse_sqs_answer(std::string_view body, std::size_t entries);

// GetQueueUrl.
std::string sqs_queue_url_request(std::string_view queue);
// Empty: the answer names none.
std::string parse_sqs_queue_url(std::string_view body);
// GetQueueAttributes, of which one will do.
std::string sqs_attributes_request(std::string_view queue_url);

AwsFailure parse_sqs_failure(std::string_view body);

}  // namespace outbox
