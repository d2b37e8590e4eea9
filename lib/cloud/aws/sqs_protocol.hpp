// The requests and answers of SQS, which speaks AWS JSON; see json_protocol.hpp.
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

}  // namespace outbox
