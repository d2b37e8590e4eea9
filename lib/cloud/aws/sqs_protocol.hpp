// The protocol of SQS, AWS JSON 1.0: a request is an object, and so is its answer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cloud/aws/batch_answer.hpp"

namespace outbox {

// Returns the result of each entry of a batch, or std::nullopt if the body is not an answer to this
// request.
std::optional<BatchAnswer> parse_sqs_answer(std::string_view body, std::size_t entries);

// Makes the request GetQueueUrl.
std::string sqs_queue_url_request(std::string_view queue);
// Returns an empty string if the answer has no URL.
std::string parse_sqs_queue_url(std::string_view body);
// Makes the request GetQueueAttributes, for one attribute.
std::string sqs_attributes_request(std::string_view queue_url);

AwsFailure parse_sqs_failure(std::string_view body);

}  // namespace outbox
